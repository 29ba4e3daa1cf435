/* The parameter table: names, shapes, counts, initial values. */
#include "model/config.h"
#include "model/param.h"
#include "modern.h"
#include "testing.h"

static choir_config nano(void) {
  choir_config c;
  test_ok(ch_config_load(CHOIR_SOURCE_DIR "/configs/nano.json", &c));
  c.model.vocab_size = 8192;
  return c;
}

static void names_and_shapes(void **state) {
  static const struct {
    const char *name;
    int dims;
    int64_t shape[3];
    double std;
    int expert, matrix;
  } want[] = {
      {"embed.weight", 2, {8192, 128}, 1, 0, 1},
      {"layers.0.attn_norm.weight", 1, {128}, 0, 0, 0},
      {"layers.0.attn.q.weight", 2, {128, 128}, 1, 0, 1},
      {"layers.0.attn.k.weight", 2, {128, 128}, 1, 0, 1},
      {"layers.0.attn.v.weight", 2, {128, 128}, 1, 0, 1},
      {"layers.0.attn.o.weight", 2, {128, 128}, 1, 0, 1},
      {"layers.0.attn.rel_bias", 2, {32, 4}, 0.1, 0, 0},
      {"layers.0.ffn_norm.weight", 1, {128}, 0, 0, 0},
      {"layers.0.ffn.gate.weight", 2, {512, 128}, 1, 0, 1},
      {"layers.0.ffn.up.weight", 2, {512, 128}, 1, 0, 1},
      {"layers.0.ffn.down.weight", 2, {128, 512}, 0.5, 0, 1},
      {"layers.1.attn_norm.weight", 1, {128}, 0, 0, 0},
      {"layers.1.moe.router.weight", 2, {128, 16}, 1, 0, 0},
      {"layers.1.moe.experts.w1", 3, {16, 128, 512}, 1, 1, 1},
      {"layers.1.moe.experts.w2", 3, {16, 128, 512}, 0.5, 1, 1},
      {"layers.3.moe.experts.w2", 3, {16, 128, 512}, 0.5, 1, 1},
      {"final_norm.weight", 1, {128}, 0, 0, 0},
  };
  choir_config c = nano();
  ch_params p;
  test_ok(ch_params_build(&c.model, &p));
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    const ch_param *q = ch_params_find(&p, want[i].name);
    assert_non_null(q);
    assert_int_equal(q->dims, want[i].dims);
    assert_memory_equal(q->shape, want[i].shape, sizeof q->shape);
    /* the table above counts in units of 1/sqrt(128) where a matrix is meant */
    double unit = want[i].std && strcmp(want[i].name, "embed.weight") && !strstr(want[i].name, "bias") ? sqrt(128) : 1;
    assert_true(fabs(q->init_std * unit - want[i].std) < 1e-12);
    assert_int_equal(q->init, want[i].std ? CH_INIT_NORMAL : CH_INIT_ONE);
    assert_int_equal(q->expert, want[i].expert);
    assert_int_equal(q->matrix, want[i].matrix);
    assert_int_equal(q->product != 0, want[i].matrix || strstr(q->name, "router") != NULL);
  }
  assert_string_equal(p.p[0].name, "embed.weight");
  assert_string_equal(p.p[p.count - 1].name, "final_norm.weight");
  assert_int_equal(p.count, 2 + 4 * 7 + 2 * 3 + 2 * 3);
  assert_null(ch_params_find(&p, "layers.0.moe.router.weight"));
  assert_null(ch_params_find(&p, "layers.1.ffn.gate.weight"));
  ch_params_free(&p);
}

/* Parameters of a block with rotary positions, QK norm and shared experts: names, shapes and order. */
static void modern_names_and_shapes(void **state) {
  static const struct {
    const char *name;
    int dims;
    int64_t shape[2];
    int matrix;
  } want[] = {{"embed.weight", 2, {8192, 128}, 0},          {"layers.0.attn_norm.weight", 1, {128}, 0},
              {"layers.0.attn.q.weight", 2, {128, 128}, 1}, {"layers.0.attn.k.weight", 2, {32, 128}, 1},
              {"layers.0.attn.v.weight", 2, {32, 128}, 1},  {"layers.0.attn.o.weight", 2, {128, 128}, 1},
              {"layers.0.attn.q_norm.weight", 1, {32}, 0},  {"layers.0.attn.k_norm.weight", 1, {32}, 0},
              {"layers.0.ffn_norm.weight", 1, {128}, 0}};
  choir_config c = nano();
  ch_params p;
  test_modern(&c);
  test_ok(ch_params_build(&c.model, &p));
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    const ch_param *q = &p.p[i];
    assert_string_equal(q->name, want[i].name);
    assert_int_equal(q->dims, want[i].dims);
    assert_memory_equal(q->shape, want[i].shape, sizeof want[i].shape);
    assert_true(q->matrix == want[i].matrix && q->product == want[i].matrix);
  }
  const ch_param *head = &p.p[p.count - 1];
  assert_string_equal(head->name, "head.weight");
  assert_string_equal(p.p[p.count - 2].name, "final_norm.weight");
  assert_true(head->matrix && head->shape[0] == 8192 && head->shape[1] == 128);
  assert_true(fabs(head->init_std - 1 / sqrt(128)) < 1e-12 && p.p[0].init_std == 1);
  assert_null(ch_params_find(&p, "layers.0.attn.rel_bias"));
  ch_params_free(&p);
}

static void refuse(const char *position, const char *key, const char *value, const char *why) {
  choir_config c = nano();
  test_ok(choir_config_set(&c, "model.position", position));
  test_ok(choir_config_set(&c, key, value));
  test_fails(choir_config_check(&c), CHOIR_ERROR_ARGUMENT, why);
}

/* Heads that keys cannot share, columns that make no pairs, and what another kind of position does not read. */
static void impossible_attention_is_refused(void **state) {
  refuse("relative", "model.kv_heads", "3", "model.kv_heads is 3: must divide model.heads, which is 4");
  refuse("relative", "model.kv_heads", "8", "model.kv_heads is 8: must divide model.heads, which is 4");
  refuse("relative", "model.rope_theta", "500", "rope_theta is 500 and model.rope_fraction 1, which model.position");
  refuse("relative", "model.rope_fraction", "0.5", "set model.position to rope");
  choir_config odd = nano();
  odd.model.rel_buckets = 31;
  odd.model.attention = CH_BIDIRECTIONAL;
  test_fails(choir_config_check(&odd), CHOIR_ERROR_ARGUMENT, "model.rel_buckets is 31 with model.attention bidirect");
  refuse("rope", "model.rope_fraction", "0.1", "model.rope_fraction is 0.1, of heads of 32 columns 3: must be an even");
  refuse("rope", "model.rope_fraction", "0.04", "of heads of 32 columns 1: must be an even number");
}

static void only_learned_routers_have_a_weight(void **state) {
  choir_config c = nano();
  ch_params p;
  test_ok(choir_config_set(&c, "router.name", "hash"));
  test_ok(ch_params_build(&c.model, &p));
  assert_null(ch_params_find(&p, "layers.1.moe.router.weight"));
  assert_non_null(ch_params_find(&p, "layers.1.moe.experts.w1"));
  ch_params_free(&p);
  c.model.vocab_size = 0;
  test_ok(ch_params_build(&c.model, &p));
  assert_int_equal(p.p[0].count, 0);
  ch_params_free(&p);
}

/* The real thing in a committed arena. */
static void make(ch_params *p, ch_arena *arena, const choir_config *c, uint64_t seed, int threads) {
  test_ok(ch_params_build(&c->model, p));
  ch_arena_init(arena, "parameters", &ch_memory_host);
  ch_params_alloc_weights(p, arena, 1);
  test_ok(ch_arena_commit(arena));
  ch_params_alloc_weights(p, arena, 1);
  test_poison((real *)arena->base, (int64_t)(arena->size / sizeof(real)));
  test_ok(ch_params_init(p, arena->memory, seed, threads));
}

static void initial_values(void **state) {
  choir_config c = nano();
  c.model.vocab_size = 101; /* odd counts too */
  c.model.d_head = 3;
  ch_params p, q;
  ch_arena a, b;
  make(&p, &a, &c, 42, 1);
  make(&q, &b, &c, 42, 3);
  for (int t = 0; t < p.count; t++) {
    const ch_param *x = &p.p[t];
    assert_memory_equal(x->w, q.p[t].w, (size_t)x->count * sizeof(real)); /* threads do not matter */
    assert_int_equal(x->w16 != NULL, x->matrix);
    double sum = 0, square = 0, n = (double)x->count;
    for (int64_t i = 0; i < x->count; i++) sum += (double)x->w[i], square += (double)x->w[i] * (double)x->w[i];
    if (x->init == CH_INIT_ONE) {
      assert_true(sum == n && square == n);
      continue;
    }
    if (!(fabs(sum / n) <= 5 * x->init_std / sqrt(n))) fail_msg("%s: mean %g", x->name, sum / n);
    if (!(fabs(square / n / x->init_std / x->init_std - 1) <= 5 * sqrt(2 / n))) fail_msg("%s: variance", x->name);
    for (int64_t i = 0; i < x->count; i += 997) { /* an element is a function of seed, tensor and index */
      real w = (real)(ch_rng_normal(ch_rng_make(42, CH_STREAM_INIT, (uint32_t)t), (uint64_t)i) * x->init_std);
      assert_true(w == x->w[i]);
    }
    if (t) assert_true(x->w[0] / x->init_std != p.p[0].w[0]); /* tensors do not share numbers */
  }
  ch_params_free(&p);
  ch_params_free(&q);
  ch_arena_free(&a);
  ch_arena_free(&b);
}

static void normals_in_blocks(void **state) {
  double block[257];
  ch_rng r = ch_rng_make(3, CH_STREAM_TEST, 1);
  for (uint64_t begin = 0; begin < 6; begin++)
    for (size_t count = 0; count <= 257; count += 1 + count / 3) {
      for (int i = 0; i < 257; i++) block[i] = (double)NAN;
      ch_rng_normals(r, begin, count, block);
      for (size_t i = 0; i < count; i++) assert_true(block[i] == ch_rng_normal(r, begin + i));
      for (size_t i = count; i < 257; i++) assert_true(isnan(block[i]));
    }
  /* Shape, not only two moments: shares within 1 and 2 standard deviations, and the correlation of neighbours. */
  enum { COUNT = 1 << 18 };
  double *x = malloc(COUNT * sizeof *x), product = 0, fourth = 0;
  int within[3] = {0};
  ch_rng_normals(r, 0, COUNT, x);
  for (int i = 0; i < COUNT; i++) {
    for (int s = 1; s <= 2; s++) within[s] += fabs(x[i]) < s;
    if (i % 2) product += x[i] * x[i - 1];
    fourth += x[i] * x[i] * x[i] * x[i];
  }
  assert_true(fabs(within[1] / (double)COUNT - 0.682689) < 0.005);
  assert_true(fabs(within[2] / (double)COUNT - 0.954500) < 0.003);
  assert_true(fabs(product / (COUNT / 2)) < 0.015);
  assert_true(fabs(fourth / COUNT - 3) < 0.1);
  free(x);
}

TEST_MAIN(NULL, NULL, names_and_shapes, modern_names_and_shapes, impossible_attention_is_refused,
          only_learned_routers_have_a_weight, initial_values, normals_in_blocks)
