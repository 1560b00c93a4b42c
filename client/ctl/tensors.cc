// ps, show, copy, rm: what there is, and whose.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/ctl/server.h"
#include "client/ctl/text.h"
#include "client/ctl/values.h"
#include "server/base/status_macros.h"

namespace devserver::ctl {
namespace {

constexpr uint32_t kPageSize = 1000;             // The server's largest.
constexpr uint64_t kShownBytesMax = 256 * 1024;  // A screenful comes from far less.

// All pages in one.
absl::StatusOr<v1::ListTensorsReply> ListTensors(const Server& server, const std::string& device,
                                                 bool all_sessions) {
  v1::ListTensorsRequest request;
  request.set_device(device);
  request.set_page_size(kPageSize);
  request.set_all_sessions(all_sessions);
  v1::ListTensorsReply all;
  do {
    ASSIGN_OR_RETURN(v1::ListTensorsReply page,
                     server.Call(server.tensors(), &v1::TensorService::Stub::ListTensors, request));
    for (v1::TensorListing& tensor : *page.mutable_tensors()) {
      all.mutable_tensors()->Add(std::move(tensor));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

std::string TensorTable(const std::vector<const v1::TensorListing*>& listings) {
  using enum Table::Align;
  Table table({{"ID", kRight},
               {"DTYPE"},
               {"SHAPE"},
               {"BYTES", kRight},
               {"DEVICE"},
               {"STATE"},
               {"AGE", kRight},
               {"LAST USE", kRight},
               {"LABEL"}});
  for (const v1::TensorListing* const listing : listings) {
    const v1::Tensor& tensor = listing->tensor();
    table.AddRow({tensor.id() == 0 ? "-" : std::to_string(tensor.id()), DTypeText(tensor.dtype()),
                  DimsText(tensor.shape()), BytesText(tensor.size_bytes()), tensor.device(),
                  StateText(tensor.state()), AgeText(listing->age_seconds()),
                  AgeText(listing->idle_seconds()) + " ago", tensor.label()});
  }
  return table.ToString();
}

absl::Status Ps(const Program& program, const std::string& device, bool all_sessions) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const v1::ListTensorsReply reply, ListTensors(server, device, all_sessions));
  if (program.json) {
    PrintJson(reply);
    return absl::OkStatus();
  }
  std::map<std::string, std::vector<const v1::TensorListing*>> by_session;
  for (const v1::TensorListing& listing : reply.tensors()) {
    by_session[listing.session()].push_back(&listing);
  }
  if (by_session.empty()) {
    Print(all_sessions ? "No tensors\n"
                       : "No tensors in your session (devserverctl ps --all shows everybody's)\n");
  }
  for (const auto& [session, listings] : by_session) {
    uint64_t bytes = 0;
    for (const v1::TensorListing* const listing : listings) {
      bytes += listing->tensor().size_bytes();
    }
    Print(absl::StrFormat("%s: %d tensor%s, %s\n", Printable(session), listings.size(),
                          listings.size() == 1 ? "" : "s", BytesText(bytes)));
    Print(TensorTable(listings));
  }
  return absl::OkStatus();
}

void PrintTensor(const v1::Tensor& tensor) {
  Print(absl::StrFormat(
      "tensor %d  %s on %s, %s, %s%s\n", tensor.id(), SpecText(tensor), Printable(tensor.device()),
      BytesText(tensor.size_bytes()), StateText(tensor.state()),
      tensor.label().empty() ? "" : absl::StrFormat(", \"%s\"", Printable(tensor.label()))));
  if (tensor.has_error()) {
    const std::string name = v1::OpError::Reason_Name(tensor.error().reason());
    Print(absl::StrFormat("  failed: %s: %s\n", name, Printable(tensor.error().message())));
  }
}

absl::Status Show(const Program& program, uint64_t id, bool values_wanted) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  v1::GetTensorRequest request;
  request.set_id(id);
  ASSIGN_OR_RETURN(const v1::Tensor tensor,
                   server.Call(server.tensors(), &v1::TensorService::Stub::GetTensor, request));
  const bool small = tensor.size_bytes() <= kShownBytesMax;
  v1::FetchedTensor fetched;
  *fetched.mutable_tensor() = tensor;
  if (values_wanted && small && tensor.state() != v1::Tensor::FAILED) {
    v1::Fetch fetch;
    fetch.set_id(id);
    ASSIGN_OR_RETURN(fetched,
                     server.Call(server.tensors(), &v1::TensorService::Stub::FetchTensor, fetch));
  }
  if (program.json) {
    PrintJson(fetched);
    return absl::OkStatus();
  }
  PrintTensor(tensor);
  if (fetched.has_values()) {
    Print(ValuesText(fetched) + "\n");
  } else if (values_wanted && !small) {
    Print(absl::StrFormat("Too many values to show; devserverctl get %d FILE.npy fetches them\n",
                          id));
  }
  return absl::OkStatus();
}

struct CopyArgs {
  v1::Copy request;
  bool if_needed = false;
};

absl::Status EnsureOn(const Program& program, const Server& server, const v1::Copy& request) {
  ASSIGN_OR_RETURN(const v1::EnsureOnReply reply,
                   server.Call(server.tensors(), &v1::TensorService::Stub::EnsureOn, request));
  if (program.json) {
    PrintJson(reply);
    return absl::OkStatus();
  }
  v1::TensorReply copied;
  *copied.mutable_tensor() = reply.tensor();
  *copied.mutable_receipt() = reply.receipt();
  Print(TensorReplyText(copied));
  if (!reply.copied()) {
    Print(absl::StrFormat("  it was on %s already: the same tensor, nothing moved\n",
                          Printable(reply.tensor().device())));
  }
  return absl::OkStatus();
}

absl::Status Copy(const Program& program, const CopyArgs& args) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  if (args.if_needed) {
    return EnsureOn(program, server, args.request);
  }
  ASSIGN_OR_RETURN(
      const v1::TensorReply reply,
      server.Call(server.tensors(), &v1::TensorService::Stub::CopyTensor, args.request));
  program.json ? PrintJson(reply) : Print(TensorReplyText(reply));
  return absl::OkStatus();
}

absl::Status Remove(const Program& program, std::vector<uint64_t> ids, bool all) {
  if (ids.empty() != all) {
    return Usage(absl::InvalidArgumentError("rm: give the tensors' ids, or --all"));
  }
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  if (all) {
    ASSIGN_OR_RETURN(const v1::ListTensorsReply mine, ListTensors(server, "", false));
    for (const v1::TensorListing& listing : mine.tensors()) {
      ids.push_back(listing.tensor().id());
    }
  }
  v1::DeleteReply reply;
  if (!ids.empty()) {
    v1::Delete request;
    request.mutable_ids()->Add(ids.begin(), ids.end());
    ASSIGN_OR_RETURN(
        reply, server.Call(server.tensors(), &v1::TensorService::Stub::DeleteTensors, request));
  }
  if (program.json) {
    PrintJson(reply);
  } else {
    Print(absl::StrFormat("%d tensor%s gone, %s free again\n", ids.size(),
                          ids.size() == 1 ? "" : "s", BytesText(reply.freed_bytes())));
  }
  return absl::OkStatus();
}

void AddCopy(CLI::App& app, Program& program) {
  CLI::App* const copy =
      AddCommand(app, "copy", "Copy a tensor to a device: always a new tensor",
                 "  devserverctl copy 1 gpu:1                    and what it cost\n"
                 "  devserverctl copy 1 gpu:1 --if-needed        tensor 1 itself if it is there\n"
                 "  devserverctl copy 1 gpu:1 --max-seconds 0.1  refused if the quote is higher");
  auto args = std::make_shared<CopyArgs>();
  auto source = std::make_shared<uint64_t>(0);
  auto device = std::make_shared<std::string>();
  auto max_seconds = std::make_shared<double>(0);
  auto id = std::make_shared<uint64_t>(0);
  copy->add_option("ID", *source, "The tensor")->required();
  copy->add_option("DEVICE", *device, "Where to: cpu, gpu:1")->required();
  copy->add_flag("-i,--if-needed", args->if_needed, "No copy if it is on DEVICE already");
  copy->add_option("--max-seconds", *max_seconds, "Refuse if the quote is higher or unknown")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS");
  copy->add_option("--id", *id, "Id for the copy; without it the server picks one")->type_name("N");
  copy->callback([=, &program] {
    args->request.set_source(*source);
    args->request.set_device(*device);
    args->request.set_max_seconds(*max_seconds);
    args->request.set_id(*id);
    program.run = [&program, args] { return Copy(program, *args); };
  });
}

void AddRemove(CLI::App& app, Program& program) {
  CLI::App* const remove = AddCommand(app, "rm", "Delete tensors",
                                      "  devserverctl rm 3\n"
                                      "  devserverctl rm 3 4 5\n"
                                      "  devserverctl rm --all     all of your session");
  auto ids = std::make_shared<std::vector<uint64_t>>();
  auto all = std::make_shared<bool>(false);
  remove->add_option("ID", *ids, "The tensors");
  remove->add_flag("-a,--all", *all, "Every tensor of your session");
  remove->callback([&program, ids, all] {
    program.run = [&program, ids, all] { return Remove(program, *ids, *all); };
  });
}

}  // namespace

void AddTensorCommands(CLI::App& app, Program& program) {
  CLI::App* const ps =
      AddCommand(app, "ps", "List tensors by session: who holds which memory",
                 "  devserverctl ps                  your session's\n"
                 "  devserverctl ps --all            everybody's; ids only of yours\n"
                 "  devserverctl ps -d gpu:0 --all   who fills gpu:0");
  auto ps_device = std::make_shared<std::string>();
  auto ps_all = std::make_shared<bool>(false);
  ps->add_option("-d,--device", *ps_device, "Only on this device")->type_name("NAME");
  ps->add_flag("-a,--all", *ps_all, "Every session's tensors");
  ps->callback([&program, ps_device, ps_all] {
    program.run = [&program, ps_device, ps_all] { return Ps(program, *ps_device, *ps_all); };
  });

  CLI::App* const show = AddCommand(app, "show", "Show a tensor: what it is, and its values",
                                    "  devserverctl show 3\n"
                                    "  devserverctl show 3 --no-values\n"
                                    "  devserverctl show 3 --json | jq .values.numbers");
  auto show_id = std::make_shared<uint64_t>(0);
  auto no_values = std::make_shared<bool>(false);
  show->add_option("ID", *show_id, "The tensor")->required();
  show->add_flag("--no-values", *no_values, "Only dtype, shape, device, state and label");
  show->callback([&program, show_id, no_values] {
    program.run = [&program, show_id, no_values] { return Show(program, *show_id, !*no_values); };
  });

  AddCopy(app, program);
  AddRemove(app, program);
}

}  // namespace devserver::ctl
