#include "server/rpc/stall_watch.h"

#include <grpcpp/server_context.h>

namespace devserver {
namespace {

int64_t Ticks() { return Clock::Real()->Now().time_since_epoch().count(); }

}  // namespace

StallWatch::Entry::Entry(StallWatch* watch, grpc::ServerContextBase* context)
    : watch_(watch), context_(context), last_moved_(Ticks()) {
  const MutexLock lock(&watch_->mu_);
  position_ = watch_->entries_.insert(watch_->entries_.end(), this);
}

StallWatch::Entry::~Entry() {
  const MutexLock lock(&watch_->mu_);
  watch_->entries_.erase(position_);
}

void StallWatch::Entry::Moved() { last_moved_.store(Ticks(), std::memory_order_relaxed); }

void StallWatch::CancelStalled(TimePoint now) {
  const MutexLock lock(&mu_);
  for (Entry* const entry : entries_) {
    const TimePoint moved(TimePoint::duration(entry->last_moved_.load(std::memory_order_relaxed)));
    if (now - moved > limit_) {
      entry->context_->TryCancel();  // Only asks; the stream ends on a thread of gRPC's.
    }
  }
}

}  // namespace devserver
