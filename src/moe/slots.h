/* Who has how many slots of whom: the arithmetic of dispatch (dispatch.h), the same on all ranks. */
#ifndef CH_MOE_SLOTS_H
#define CH_MOE_SLOTS_H

#include "op/op.h"

/* Some of a rank's experts, one behind the other. */
typedef struct ch_expert_group {
  int first;        /* of this rank's experts */
  int64_t slot;     /* of this rank's experts' slots */
  ch_record record; /* their slots, from that one on: expert_begin and sizes only */
} ch_expert_group;

enum { CH_EXPERT_GROUPS = 4 }; /* at most */

/* The slots of this rank's tokens that are gathered, or added up, at a time: all, unless they need several rounds
 * (rounds.h). */
typedef struct ch_round {
  int several;           /* more than one: else there are `part` and `number` only */
  int number;            /* of rounds begun, where there is one */
  const ch_record *part; /* the slots; tokens count from first_token of those that ex->local is about */
  int first_token;
  ch_record piece;                     /* scratch [room]: what part points to */
  const int *token_begin, *slot_token; /* the record's, for the host */
  int *last;                           /* [ranks] host: of each rank's tokens the end, by their number in the record */
  int64_t *before, *slots;             /* [ranks,e] host: slots of rounds before, and of this one */
} ch_round;

struct ch_dispatcher;

/* A record in two views: of this rank's tokens, and of this rank's experts. In one process both are the record. */
typedef struct ch_dispatch {
  const struct ch_dispatcher *with;
  int n, e, d;     /* tokens of every rank; experts of all; width of a row */
  ch_record all;   /* what was split */
  int begin;       /* the first token that it is about */
  int first_row;   /* of this rank's tokens, the first that the record is about */
  ch_record local; /* the slots of this rank's tokens, with all experts; tokens count from first_row */
  int room;        /* rows of this rank's tokens that there is room for at a time */
  int64_t owned;   /* room for rows of this rank's experts, of its replica's tokens */
  int groups;      /* that these experts are cut into: as many on every rank, some perhaps empty */
  ch_expert_group group[CH_EXPERT_GROUPS];
  /* The rest is of several ranks. */
  int64_t *slots;        /* [ranks,e] host: slots that the rank's tokens have of the expert */
  ch_bytes *spans;       /* [groups,4,ranks] host: of the exchanges */
  ch_transfer *transfer; /* [2,groups] host: to the experts, and back */
  void CH_DEV *kept;     /* [owned,d] what experts read in forward, as it came */
  /* From dispatch to combine: */
  ch_bf16 CH_DEV *rounded; /* [room,d] scratch, where the wire is bf16 */
  ch_round round;
  void CH_DEV *stage;           /* [owned,d] scratch, as they travel */
  void CH_DEV *local_rows;      /* where rows of this rank's tokens go from, and come back to */
  char CH_DEV *partial;         /* [shards-1,room,d] scratch: what comes back from hidden shards but the first */
  void CH_DEV *arrivals;        /* where rows of its experts come to */
  const char *request, *answer; /* what goes there, and back */
} ch_dispatch;

/* Numbers first .. last-1: experts, or tokens. */
typedef struct ch_range {
  int first, last;
} ch_range;

static inline int ch_least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

/* The experts that a rank of the replica has a shard of; those of one of its groups; and of this rank's. */
ch_range ch_experts_of(const ch_exec *x, int e, int rank);
ch_range ch_group_of(const ch_exec *x, const ch_dispatch *ex, int rank, int group);
ch_range ch_own_group(const ch_exec *x, const ch_dispatch *ex, int group);

/* Tokens of one rank, by its number among all: of those that ex->all is about, and numbered as there. */
ch_range ch_tokens_of(const ch_dispatch *ex, int rank);

/* How many groups the experts of every rank are cut into: as many as there are messages worth one of their own, in the
 * mean over the ranks of a replica, each of which has a message to each other one for every group. owners: among whom e
 * experts are shared out. */
int ch_dispatch_groups(int64_t ranks, int64_t owners, int e, int64_t max_slots, int64_t row_bytes, int64_t worth);

/* From ex->all: fills ex->slots, and where this rank's groups begin. */
void ch_slots_count(ch_exec *x, ch_dispatch *ex);

/* Slots that the tokens of one rank, by its number among all, have of these experts. */
int64_t ch_slots_at(const ch_dispatch *ex, int rank, ch_range experts);

#endif
