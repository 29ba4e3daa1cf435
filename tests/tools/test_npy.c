/* .npy: arrays written by choir and by NumPy are read, malformed files are refused. */
#include "file/file.h"
#include "npy/npy.h"
#include "one_file.h"

static const size_t sizes[] = {4, 8, 4, 8, 1};

static void every_type_and_rank_round_trips(void **state) {
  double values[24]; /* any bytes will do */
  for (int i = 0; i < 24; i++) values[i] = 1.0 / (i + 1);
  for (int type = 0; type < 5; type++)
    for (int dims = 0; dims <= 8; dims++) {
      ch_npy array = {.type = (ch_npy_type)type, .dims = dims, .data = values}, back;
      size_t count = 1;
      for (int i = 0; i < dims; i++) count *= (size_t)(array.shape[i] = i < 3 ? 2 + (i == 1) : 1);
      test_ok(ch_npy_write(path, &array));
      test_ok(ch_npy_read(path, array.type, dims, &back));
      assert_int_equal(back.dims, dims);
      assert_memory_equal(back.shape, array.shape, (size_t)dims * sizeof *back.shape);
      assert_memory_equal(back.data, values, count * sizes[type]);
      ch_npy_free(&back);
      refused(ch_npy_read(path, array.type, dims ? dims + 1 : 1, &back), "dimensions");
      assert_null(back.data);
    }
  ch_npy empty = {.type = CH_NPY_INT32, .dims = 2, .shape = {0, 5}};
  test_ok(ch_npy_write(path, &empty));
  test_ok(ch_npy_read(path, CH_NPY_INT32, 2, &empty));
  assert_int_equal(empty.shape[1], 5);
  ch_npy_free(&empty);
}

/* The file as NumPy's documentation lays it out, byte for byte. */
static void header_is_numpys(void **state) {
  char *bytes;
  size_t size;
  int32_t data[6] = {1, 2, 3, 4, 5, 6};
  ch_npy array = {.type = CH_NPY_INT32, .dims = 2, .shape = {2, 3}, .data = data};
  test_ok(ch_npy_write(path, &array));
  test_ok(ch_file_read(path, 1 << 20, &bytes, &size));
  assert_int_equal(size, 128 + sizeof data);
  assert_memory_equal(bytes, "\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3,), } ",
                      70);
  assert_int_equal(bytes[127], '\n');
  free(bytes);
}

static int parse(int version, const char *header, const void *data, size_t data_bytes, ch_npy_type as, ch_npy *array) {
  char file[2048] = "\x93NUMPY";
  size_t length = strlen(header), begin = version == 1 ? 10 : 12;
  file[6] = (char)version;
  file[8] = (char)length;
  file[9] = (char)(length >> 8);
  memcpy(file + begin, header, length);
  memcpy(file + begin + length, data, data_bytes);
  return ch_npy_parse(file, begin + length + data_bytes, "f", as, 0, array);
}

static void headers_of_other_programs(void **state) {
  static const char *const headers[] = {
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }    \n",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n",
      "{\"shape\":(2,),\"descr\":\"<f4\",\"fortran_order\":True}",
      "  { 'shape' : ( 2 , 1 ) , 'fortran_order' : False , 'descr' : '<f4' , }  ",
  };
  const float data[2] = {1.5f, -2};
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
    for (int version = 1; version <= 2; version++) {
      ch_npy array;
      test_ok(parse(version, headers[i], data, 8, CH_NPY_FLOAT32, &array));
      assert_int_equal(array.shape[0], 2);
      assert_memory_equal(array.data, data, 8);
      ch_npy_free(&array);
    }
}

static void narrowing(void **state) {
  ch_npy a;
  double doubles[3] = {1.1, -1e-60, INFINITY};
  int64_t integers[3] = {INT32_MIN, 7, INT32_MAX};
  test_ok(parse(1, "{'descr':'<f8','fortran_order':False,'shape':(3,)}", doubles, 24, CH_NPY_FLOAT32, &a));
  assert_true(((float *)a.data)[0] == 1.1f && isinf(((float *)a.data)[2]));
  ch_npy_free(&a);
  test_ok(parse(1, "{'descr':'<i8','fortran_order':False,'shape':(3,)}", integers, 24, CH_NPY_INT32, &a));
  assert_true(((int32_t *)a.data)[0] == INT32_MIN && ((int32_t *)a.data)[2] == INT32_MAX);
  ch_npy_free(&a);
  doubles[1] = 1e39;
  integers[2]++;
  refused(parse(1, "{'descr':'<f8','fortran_order':False,'shape':(3,)}", doubles, 24, CH_NPY_FLOAT32, &a),
          "element 1 is 1e+39");
  refused(parse(1, "{'descr':'<i8','fortran_order':False,'shape':(3,)}", integers, 24, CH_NPY_INT32, &a),
          "element 2 is 2147483648");
  refused(parse(1, "{'descr':'<i8','fortran_order':False,'shape':(3,)}", integers, 24, CH_NPY_FLOAT32, &a),
          "its elements are int64: float32 is wanted");
}

/* The first index fastest in the file, the last one in memory; with one dimension there is no difference. */
static void fortran_order(void **state) {
  const int32_t stored[12] = {0, 100, 10, 110, 20, 120,
                              1, 101, 11, 111, 21, 121}; /* [2,3,2], value = 100 a + 10 b + c */
  ch_npy array;
  test_ok(parse(1, "{'descr': '<i4', 'fortran_order': True, 'shape': (2,3,2), }", stored, 48, CH_NPY_INT32, &array));
  for (int i = 0; i < 12; i++) assert_int_equal(((int32_t *)array.data)[i], 100 * (i / 6) + 10 * (i / 2 % 3) + i % 2);
  ch_npy_free(&array);
  const double wide[4] = {1, 3, 2, 4};
  test_ok(parse(1, "{'descr': '<f8', 'fortran_order': True, 'shape': (2,2), }", wide, 32, CH_NPY_FLOAT32, &array));
  for (int i = 0; i < 4; i++) assert_true(((float *)array.data)[i] == (float)(i + 1));
  ch_npy_free(&array);
  test_ok(parse(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (0,3), }", stored, 0, CH_NPY_FLOAT32, &array));
  ch_npy_free(&array);
}

/* 1, -2, the largest, the smallest normal and subnormal, infinity, NaN, 1/3 as it rounds. */
static void half_precision(void **state) {
  const uint16_t stored[8] = {0x3C00, 0xC000, 0x7BFF, 0x0400, 0x8001, 0xFC00, 0x7E00, 0x3555};
  const float want[8] = {1, -2, 65504, 0x1p-14f, -0x1p-24f, -INFINITY, NAN, 0.333251953125f};
  ch_npy array;
  test_ok(parse(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (8,), }", stored, 16, CH_NPY_FLOAT32, &array));
  for (int i = 0; i < 8; i++) {
    float got = ((float *)array.data)[i];
    assert_true(isnan(want[i]) ? isnan(got) : got == want[i]);
  }
  ch_npy_free(&array);
  refused(parse(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (8,), }", stored, 16, CH_NPY_INT32, &array),
          "its elements are float16: int32 is wanted");
}

static void malformed(void **state) {
  static const struct {
    const char *header, *part;
  } cases[] = {
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "needs 12 bytes of float32, it has 8: truncated"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "needs 4 bytes of float32, it has 8"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", "'>f4'"},
      {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", "'<c8'"},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }", "needs 6 bytes of float16, it has 8"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (2,2), }", "needs 16 bytes"},
      {"{'descr': '<f4', 'fortran_order': 1, 'shape': (2,), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (,), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 2), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,2,1,1,1,1,1,1,1), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296,4294967296,2), }", "overflows"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }", "overflows"},
      {"{'descr': '<f4', 'fortran_order': False}", "malformed"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x", "malformed"},
      {"{'descr': '<f4' 'fortran_order': False, 'shape': (2,), }", "malformed"},
      {"{'descr': '<f4", "malformed"},
      {"", "malformed"},
  };
  ch_npy array;
  const float data[2] = {1, 2};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refused(parse(1, cases[i].header, data, 8, CH_NPY_FLOAT32, &array), cases[i].part);
    assert_null(array.data);
  }
  refused(parse(3, cases[0].header, data, 8, CH_NPY_FLOAT32, &array), "version 3");
  refused(ch_npy_read("/nonexistent/x.npy", CH_NPY_FLOAT32, 0, &array), "/nonexistent/x.npy");
}

static void every_truncation_is_refused(void **state) {
  char *bytes;
  size_t size;
  float data[4] = {1, 2, 3, 4};
  ch_npy array = {.type = CH_NPY_FLOAT32, .dims = 2, .shape = {2, 2}, .data = data}, back;
  test_ok(ch_npy_write(path, &array));
  test_ok(ch_file_read(path, 1 << 20, &bytes, &size));
  for (size_t length = 0; length < size; length++) {
    char *copy = malloc(length + 1); /* exact size: the address sanitizer watches its end */
    memcpy(copy, bytes, length);
    refused(ch_npy_parse(copy, length, "f", CH_NPY_FLOAT32, 0, &back), "f: ");
    free(copy);
  }
  test_ok(ch_npy_parse(bytes, size, "f", CH_NPY_FLOAT32, 0, &back));
  ch_npy_free(&back);
  free(bytes);
  array.dims = 9;
  refused(ch_npy_write(path, &array), "9 dimensions");
  array = (ch_npy){.type = CH_NPY_FLOAT32, .dims = 1, .shape = {-1}, .data = data};
  refused(ch_npy_write(path, &array), "impossible");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(every_type_and_rank_round_trips, make_path, drop_path),
      cmocka_unit_test_setup_teardown(header_is_numpys, make_path, drop_path),
      cmocka_unit_test(headers_of_other_programs),
      cmocka_unit_test(narrowing),
      cmocka_unit_test(fortran_order),
      cmocka_unit_test(half_precision),
      cmocka_unit_test(malformed),
      cmocka_unit_test_setup_teardown(every_truncation_is_refused, make_path, drop_path),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
