/* The table of ranks on SimGrid (S4U). Each pair of ranks has a mailbox, which keeps messages in the order of
 * their exchanges. A message departs when sender and receiver have begun the exchange. Bytes are copied only in the few
 * exchanges whose content the simulated code reads. */
#include "network.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace s4u = simgrid::s4u;

namespace {

/* A sender need not wait for a message up to this size, as SMPI has it by default (smpi/send-is-detached-thresh). */
const int64_t EAGER = 65536;

/* Few messages an actor: SimGrid looks through all of an actor's whenever one ends. */
const int AT_ONCE = 24;

/* A transfer under way. Its couriers may outlive it, by the messages that nobody waits for. */
struct transfer {
  int to_come = 0, to_go = 0;
  s4u::ConditionVariablePtr changed = s4u::ConditionVariable::create();
  s4u::MutexPtr mutex = s4u::Mutex::create();
};

struct rank_state {
  ch_comm comm;
  ch_traffic traffic;
  double pending, computed; /* seconds */
  std::vector<std::shared_ptr<transfer>> place;
};

std::vector<rank_state> ranks;
std::vector<s4u::Host *> hosts;
std::vector<s4u::Mailbox *> boxes; /* [from, to] */
char nothing;

bool is_read(const char *what) {
  static const char *const names[] = {"loads of experts", "agreement", "maximum", "what one rank says"};
  for (const char *name : names)
    if (!strcmp(what, name)) return true;
  return false;
}

rank_state *state_of(const ch_comm *comm) { return static_cast<rank_state *>(comm->context); }

void sleep_off(const ch_comm *comm) {
  rank_state *s = state_of(comm);
  double pending = s->pending;
  s->pending = 0;
  if (pending > 0) s4u::this_actor::sleep_for(pending);
}

/* One rank's messages to and from some others. */
struct errand {
  int self;
  bool read;
  std::vector<int> from, to;
  std::vector<ch_bytes> receive, send;
};

bool is_waited_for(const ch_bytes &span) { return span.bytes >= EAGER; }

void *content(const errand &e, const ch_bytes &span) {
  if (!e.read) return &nothing;
  void *copy = malloc(static_cast<size_t>(span.bytes));
  memcpy(copy, span.at, static_cast<size_t>(span.bytes));
  return copy;
}

void count_down(transfer &t, int &left) {
  if (--left == 0) t.changed->notify_all();
}

void run_errand(const std::shared_ptr<transfer> &t, const errand &e) {
  const int P = static_cast<int>(ranks.size());
  std::vector<s4u::CommPtr> come, go;
  std::vector<void *> got(e.from.size());
  for (size_t i = 0; i < e.from.size(); i++) come.push_back(boxes[e.from[i] * P + e.self]->get_async<void>(&got[i]));
  for (size_t i = 0; i < e.to.size(); i++) {
    s4u::Mailbox *box = boxes[e.self * P + e.to[i]];
    go.push_back(box->put_async(content(e, e.send[i]), static_cast<uint64_t>(e.send[i].bytes)));
  }
  for (size_t i = 0; i < come.size(); i++) {
    come[i]->wait();
    if (e.read) {
      memcpy(e.receive[i].at, got[i], static_cast<size_t>(e.receive[i].bytes));
      free(got[i]);
    }
    count_down(*t, t->to_come);
  }
  for (size_t i = 0; i < go.size(); i++) { /* SimGrid's own detach() takes time by all messages under way */
    go[i]->wait();
    if (is_waited_for(e.send[i])) count_down(*t, t->to_go);
  }
}

/* All receive from the rank before them first and send to the one behind, as over MPI. */
void begin(const ch_comm *comm, ch_transfer *t) {
  rank_state *s = state_of(comm);
  sleep_off(comm);
  size_t place = 0;
  while (place < s->place.size() && s->place[place]) place++;
  if (place == s->place.size()) s->place.emplace_back();
  t->place = static_cast<int>(place);
  auto under_way = s->place[place] = std::make_shared<transfer>();
  std::vector<errand> errands;
  for (int i = 1; i < comm->size; i++) {
    if (i % AT_ONCE == 1) errands.push_back({s->comm.rank, is_read(t->what), {}, {}, {}, {}});
    errand &e = errands.back();
    int from = (comm->rank + comm->size - i) % comm->size, to = (comm->rank + i) % comm->size;
    if (t->receive[from].bytes) {
      e.from.push_back(ch_comm_number(comm, from));
      e.receive.push_back(t->receive[from]);
      under_way->to_come++;
    }
    if (t->send[to].bytes) {
      e.to.push_back(ch_comm_number(comm, to));
      e.send.push_back(t->send[to]);
      under_way->to_go += is_waited_for(t->send[to]);
    }
  }
  for (errand &e : errands)
    if (!e.from.empty() || !e.to.empty())
      s4u::Actor::create("courier", hosts[e.self], [under_way, e] { run_errand(under_way, e); });
}

int test(const ch_comm *comm, ch_transfer *t) {
  sleep_off(comm);
  const transfer &u = *state_of(comm)->place[t->place];
  return !u.to_come && !u.to_go;
}

void wait(const ch_comm *comm, ch_transfer *t, ch_transfer_state until) {
  rank_state *s = state_of(comm);
  sleep_off(comm);
  std::shared_ptr<transfer> u = s->place[t->place];
  {
    std::unique_lock<s4u::Mutex> lock(*u->mutex);
    while (u->to_come || (until == CH_ENDED && u->to_go)) u->changed->wait(lock);
  }
  if (until == CH_ENDED) s->place[t->place].reset();
}

}  // namespace

void scale_network_run(int argc, char **argv, const char *platform, int count,
                       void (*run)(const ch_comm *comm, void *context), void *context) {
  s4u::Engine engine(&argc, argv);
  engine.load_platform(platform);
  ranks.resize(static_cast<size_t>(count));
  for (int r = 0; r < count; r++) hosts.push_back(engine.host_by_name("node-" + std::to_string(r)));
  for (int i = 0; i < count * count; i++) boxes.push_back(s4u::Mailbox::by_name(std::to_string(i)));
  for (int r = 0; r < count; r++) {
    rank_state *s = &ranks[r];
    s->comm.name = "simulated";
    s->comm.rank = r;
    s->comm.size = count;
    s->comm.stride = 1;
    s->comm.piece = INT64_C(1) << 28;
    s->comm.worth = CH_COMM_WORTH;
    s->comm.means = CH_COMM_MEANS;
    s->comm.traffic = &s->traffic;
    s->comm.context = s;
    s->comm.begin = begin;
    s->comm.test = test;
    s->comm.wait = wait;
    s4u::Actor::create("rank-" + std::to_string(r), hosts[r], [s, run, context] { run(&s->comm, context); });
  }
  engine.run();
}

void scale_network_compute(const ch_comm *comm, double seconds) {
  state_of(comm)->pending += seconds;
  state_of(comm)->computed += seconds;
}

double scale_network_now(const ch_comm *comm) {
  sleep_off(comm);
  return s4u::Engine::get_clock();
}

double scale_network_computed(const ch_comm *comm) { return state_of(comm)->computed; }

/* One MiB of memory, over and over. */
void *scale_network_nowhere(int64_t bytes) {
  const size_t PAGES = 1 << 20;
  static char *region;
  static size_t room;
  static int file = memfd_create("nowhere", 0);
  size_t wanted = (static_cast<size_t>(bytes) + PAGES - 1) / PAGES * PAGES;
  if (wanted <= room) return region;
  if (!room && ftruncate(file, PAGES)) abort();
  void *p = mmap(nullptr, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) abort();
  for (size_t at = 0; at < wanted; at += PAGES)
    if (mmap(static_cast<char *>(p) + at, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
      abort();
  region = static_cast<char *>(p); /* a smaller one before may still be in use: it stays */
  room = wanted;
  return region;
}
