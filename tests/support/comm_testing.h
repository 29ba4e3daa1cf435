/* Exchanges whose bytes nobody else has, for tests of ranks. */
#ifndef COMM_TESTING_H
#define COMM_TESTING_H

#include "comm/collective.h"
#include "forked_comm.h"
#include "testing.h"

/* A failed check ends the process, and with it the test. */
#define must(condition)                                                                                      \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      fprintf(stderr, "%s:%d: rank %d of %d: %s\n", __FILE__, __LINE__, comm->rank, comm->size, #condition); \
      return 1;                                                                                              \
    }                                                                                                        \
  } while (0)

/* Numbers that nobody else has. */
static inline int32_t number(int from, int to, int64_t i) { return (int32_t)(from * 1000003 + to * 10007 + i); }

/* Counts that both sides know: few, none or many, all to one; from FEWER on the same of fewer. */
enum { FEWER = 3 };
static inline int64_t count_of(int kind, int from, int to) {
  if (kind >= FEWER) return count_of(kind - FEWER, from, to) / 100;
  if (kind == 0) return 5;
  if (kind == 1) return (int64_t)ch_rng_below(ch_rng_make(3, CH_STREAM_TEST, 5), (uint64_t)(from * 64 + to), 4) * 1000;
  return to == 0 ? 9000 : 0;
}

/* One exchange with numbers of its own, and what it must leave. */
typedef struct {
  ch_transfer transfer;
  int kind, salt;
  int32_t *to[FORKED_MAX], *from[FORKED_MAX];
  ch_bytes send[FORKED_MAX], receive[FORKED_MAX];
  int64_t sent; /* bytes */
} numbers;

static inline void prepare(const ch_comm *comm, int kind, int salt, numbers *x) {
  *x = (numbers){.kind = kind, .salt = salt};
  for (int r = 0; r < comm->size; r++) {
    int64_t out = count_of(kind, comm->rank, r), in = count_of(kind, r, comm->rank);
    x->to[r] = malloc((size_t)(out + 1) * sizeof **x->to);
    x->from[r] = malloc((size_t)(in + 1) * sizeof **x->from);
    for (int64_t i = 0; i < out; i++) x->to[r][i] = number(comm->rank, r, i) + salt;
    for (int64_t i = 0; i <= in; i++) x->from[r][i] = 77;
    x->send[r] = (ch_bytes){x->to[r], out * (int64_t)sizeof **x->to};
    x->receive[r] = (ch_bytes){x->from[r], in * (int64_t)sizeof **x->from};
    x->sent += r == comm->rank ? 0 : x->send[r].bytes;
  }
}

static inline int check(const ch_comm *comm, const numbers *x) {
  for (int r = 0; r < comm->size; r++) {
    int64_t in = count_of(x->kind, r, comm->rank);
    for (int64_t i = 0; i < in; i++) must(x->from[r][i] == number(r, comm->rank, i) + x->salt);
    must(x->from[r][in] == 77);
  }
  return 0;
}

static inline void numbers_free(numbers *x) {
  for (int r = 0; r < FORKED_MAX; r++) free(x->to[r]), free(x->from[r]);
}

#endif
