#include "model/ranks.h"

#include "comm/collective.h"
#include "model/block.h"

ch_pass ch_ranks_share(const ch_exec *x, const ch_transformer *m, const ch_pass *p) {
  ch_pass local = *p;
  local.B = (int)ch_local_count(x->comm, p->B);
  local.grad_chunks = (int)ch_local_count(x->comm, ch_pass_grad_chunks(p));
  int64_t sequence = ch_local_offset(x->comm, local.B), token = sequence * local.T;
  if (p->length) local.length += sequence;
  if (p->target) local.target += token;
  if (p->row_weight) local.row_weight += token;
  if (p->token_loss) local.token_loss += token;
  if (p->logits) local.logits += token * m->config.vocab_size;
  local.grad_chunk_loss += ch_local_offset(x->comm, local.grad_chunks);
  return local;
}

const int32_t CH_DEV *ch_ranks_tokens(const ch_exec *x, const ch_pass *p) {
  return p->route.tokens.id + ch_local_offset(x->comm, (int64_t)p->B * p->T);
}

void ch_ranks_gather_losses(ch_exec *x, const ch_pass *p) {
  if (x->comm->size == 1) return;
  CH_SCRATCH(x);
  int grad_chunks = ch_pass_grad_chunks(p);
  ch_gather_shares(x, x->comm, "losses of gradient chunks", p->grad_chunk_loss, grad_chunks,
                   sizeof *p->grad_chunk_loss);
  const double *loss = ch_download(x, p->grad_chunk_loss, (size_t)grad_chunks * sizeof *loss);
  if (ch_counting(x)) return;
  const double sum = ch_add_grad_chunks(grad_chunks, loss);
  x->memory->upload(p->sums + CH_PASS_GUARD, &sum, sizeof sum);
  if (p->token_loss)
    ch_comm_gather_shares(x->comm, "losses of tokens", p->token_loss, (int64_t)p->B * p->T, sizeof *p->token_loss);
}

void ch_ranks_sum_experts(ch_exec *x, const ch_layer *b) {
  const ch_comm *dp_group = &x->grid.dp_group;
  enum { MAX = 3 };
  const ch_param *tensor[MAX] = {b->w1, b->w2, b->w3};
  const int tensors = b->w3 ? MAX : MAX - 1;
  real *gradient[MAX];
  ch_comm_array array[MAX];
  for (int i = 0; i < tensors; i++) {
    int64_t max = ch_largest_share(&x->grid.ep_group, tensor[i]->shape[0]);
    gradient[i] = CH_HOST_OR_DEVICE(tensor[i]->g);
    array[i] = (ch_comm_array){
        .piece = &gradient[i], .count = tensor[i]->count, .max = max * tensor[i]->shape[1] * tensor[i]->part.columns};
  }
  ch_comm_sum_in(&ch_host(x)->scratch, dp_group, "gradients of experts", dp_group->size, array, tensors);
}
