#include "server/fabric/fabric.h"

namespace devserver {
namespace {

constexpr char kHost[] = "cpu:0";

QuoteLeg MakeLeg(const std::string& source, const std::string& target, const Link& link,
                 uint64_t size_bytes) {
  QuoteLeg leg = {source, target, link.medium, {}};
  if (link.bytes_per_second > 0) {
    leg.estimated.seconds =
        link.latency_seconds + static_cast<double>(size_bytes) / link.bytes_per_second;
    leg.estimated.basis = Basis::kConfigured;
  }
  return leg;
}

}  // namespace

void Fabric::AddLink(const std::string& source, const std::string& target, const Link& link) {
  links_[{source, target}] = link;
}

const Link* Fabric::Find(const std::string& source, const std::string& target) const {
  const auto found = links_.find({source, target});
  return found == links_.end() ? nullptr : &found->second;
}

Quote Fabric::QuoteCopy(const std::string& source, const std::string& target,
                        uint64_t size_bytes) const {
  Quote quote;
  quote.size_bytes = size_bytes;
  const auto add_leg = [&](const std::string& from, const std::string& to, const Link& link) {
    quote.legs.push_back(MakeLeg(from, to, link, size_bytes));
    quote.simulated = quote.simulated || link.simulated;
  };
  if (const Link* const direct = Find(source, target); direct != nullptr) {
    add_leg(source, target, *direct);
  } else {
    const Link* const up = Find(source, kHost);
    const Link* const down = Find(kHost, target);
    if (up != nullptr && down != nullptr && source != target) {
      add_leg(source, kHost, *up);
      add_leg(kHost, target, *down);
    } else {
      add_leg(source, target, Link{});
    }
  }
  quote.estimated.basis = Basis::kConfigured;
  for (const QuoteLeg& leg : quote.legs) {
    quote.estimated.seconds += leg.estimated.seconds;
    if (leg.estimated.basis == Basis::kUnknown) {
      quote.estimated = Duration{};
      break;
    }
  }
  return quote;
}

}  // namespace devserver
