// put and get: files in and out, with a progress bar.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/ctl/progress.h"
#include "client/ctl/server.h"
#include "client/ctl/text.h"
#include "devserver/npy.h"
#include "devserver/ops.h"
#include "devserver/safetensors.h"
#include "server/base/status_macros.h"

namespace devserver::ctl {
namespace {

using client::NpyArray;
using client::SafetensorsEntry;

bool IsNpy(const std::string& path) { return path.ends_with(".npy"); }
bool IsSafetensors(const std::string& path) { return path.ends_with(".safetensors"); }

absl::Status UnknownFormat(const std::string& path) {
  return Usage(absl::InvalidArgumentError(
      absl::StrFormat("\"%s\" ends neither in .npy nor in .safetensors: the ending says the format",
                      Printable(path))));
}

std::string BaseName(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// What moved, for the report.
struct Moved {
  v1::Tensor tensor;
  std::string name;  // in the file
  double seconds = 0;
};

void Report(const Program& program, const std::string& path, const std::vector<Moved>& all) {
  if (!program.json) {
    for (const Moved& moved : all) {
      const v1::Tensor& tensor = moved.tensor;
      const double rate =
          moved.seconds > 0 ? static_cast<double>(tensor.size_bytes()) / moved.seconds : 0;
      Print(absl::StrFormat("tensor %d  %s on %s, %s  %s  in %s, %s\n", tensor.id(),
                            SpecText(tensor), Printable(tensor.device()),
                            BytesText(tensor.size_bytes()), Printable(moved.name),
                            SecondsText(moved.seconds), RateText(rate)));
    }
    return;
  }
  Json tensors = Json::array();
  for (const Moved& moved : all) {
    tensors.push_back({{"tensor", ToJson(moved.tensor)},
                       {"name", moved.name},
                       {"measuredSeconds", moved.seconds}});
  }
  PrintJson(Json{{"file", path}, {"tensors", tensors}});
}

absl::StatusOr<v1::Tensor> GetTensor(const Server& server, uint64_t id) {
  v1::GetTensorRequest request;
  request.set_id(id);
  return server.Call(server.tensors(), &v1::TensorService::Stub::GetTensor, request);
}

// ---- put

struct PutArgs {
  std::string path;
  std::string device = "cpu:0";
  std::string label;
  std::vector<std::string> names;
};

// A file of either kind: what it holds, and the memory that the entries point into.
struct Source {
  client::NpyFile npy;
  client::SafetensorsFile safetensors;
  std::vector<SafetensorsEntry> entries;
};

absl::StatusOr<Source> LoadSource(const PutArgs& args) {
  Source source;
  if (IsNpy(args.path)) {
    if (!args.names.empty()) {
      return Usage(
          absl::InvalidArgumentError("--name is for .safetensors; a .npy file holds one array"));
    }
    ASSIGN_OR_RETURN(source.npy, client::LoadNpy(args.path));
    source.entries.push_back({BaseName(args.path), source.npy.array.spec, source.npy.array.bytes});
    return source;
  }
  if (!IsSafetensors(args.path)) {
    return UnknownFormat(args.path);
  }
  ASSIGN_OR_RETURN(source.safetensors, client::LoadSafetensors(args.path));
  if (args.names.empty()) {
    source.entries = source.safetensors.contents.tensors;
    return source;
  }
  for (const std::string& name : args.names) {
    const SafetensorsEntry* const entry = source.safetensors.contents.Find(name);
    if (entry == nullptr) {
      std::string there;
      for (const SafetensorsEntry& other : source.safetensors.contents.tensors) {
        there += (there.empty() ? "" : ", ") + Printable(other.name);
      }
      return absl::NotFoundError(
          absl::StrFormat("%s has no tensor \"%s\"; it has %s", args.path, Printable(name), there));
    }
    source.entries.push_back(*entry);
  }
  return source;
}

// Uploads all entries; `moved` holds those that arrived, also after an error.
absl::Status UploadAll(const Server& server, const client::Device& device, const Source& source,
                       const PutArgs& args, std::vector<Moved>& moved) {
  uint64_t total = 0;
  for (const SafetensorsEntry& entry : source.entries) {
    total += entry.bytes.size();
  }
  ProgressBar bar(BaseName(args.path));
  uint64_t before = 0;
  for (const SafetensorsEntry& entry : source.entries) {
    client::TransferOptions options;
    options.label = args.label.empty() ? entry.name : args.label;
    options.progress = [&](uint64_t done, uint64_t) { bar.Show(before + done, total); };
    const double start = bar.seconds();
    const client::Tensor tensor = client::upload(entry.spec, entry.bytes, device, options);
    RETURN_IF_ERROR(tensor.sync());
    const double seconds = bar.seconds() - start;
    before += entry.bytes.size();
    bar.Show(before, total);
    ASSIGN_OR_RETURN(v1::Tensor stored, GetTensor(server, tensor.id()));
    moved.push_back({std::move(stored), entry.name, seconds});
  }
  return absl::OkStatus();
}

absl::Status Put(const Program& program, const PutArgs& args) {
  const absl::StatusOr<Source> source = LoadSource(args);
  if (!source.ok()) {
    return Usage(source.status());
  }
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const client::Client client, ConnectClient(program, /*default_session=*/true));
  ASSIGN_OR_RETURN(const client::Device device, client.device(args.device));
  std::vector<Moved> moved;
  absl::Status status = UploadAll(server, device, *source, args, moved);
  if (!status.ok()) {
    // All or nothing: half a network is of no use to anybody.
    std::vector<uint64_t> ids;
    ids.reserve(moved.size());
    for (const Moved& arrived : moved) {
      ids.push_back(arrived.tensor.id());
    }
    if (!ids.empty()) {
      client.remove(ids).IgnoreError();
    }
    return status;
  }
  Report(program, args.path, moved);
  return absl::OkStatus();
}

// ---- get

struct GetArgs {
  std::vector<std::string> items;  // the ids, then the file
};

struct Wanted {
  std::vector<uint64_t> ids;
  std::string path;
};

absl::StatusOr<Wanted> ParseWanted(const std::vector<std::string>& items) {
  Wanted wanted;
  wanted.path = items.back();
  if (!IsNpy(wanted.path) && !IsSafetensors(wanted.path)) {
    return UnknownFormat(wanted.path);
  }
  for (size_t i = 0; i + 1 < items.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> ids, ParseIntegers(items[i], "ID"));
    for (const int64_t id : ids) {
      if (id < 1) {
        return Usage(absl::InvalidArgumentError(
            absl::StrFormat("ID %d: ids start at 1; devserverctl ps lists yours", id)));
      }
      wanted.ids.push_back(static_cast<uint64_t>(id));
    }
  }
  if (IsNpy(wanted.path) && wanted.ids.size() != 1) {
    return Usage(absl::InvalidArgumentError(absl::StrFormat(
        "%d tensors don't fit one .npy file; use a .safetensors file", wanted.ids.size())));
  }
  return wanted;
}

// The labels where they can be names in one file: there, and not taken.
std::vector<std::string> NamesOf(const std::vector<v1::Tensor>& tensors) {
  std::set<std::string> taken = {"__metadata__"};
  std::vector<std::string> names;
  for (const v1::Tensor& tensor : tensors) {
    std::string name = tensor.label();
    if (name.empty() || !taken.insert(name).second) {
      name = absl::StrFormat("tensor_%d", tensor.id());
      taken.insert(name);
    }
    names.push_back(std::move(name));
  }
  return names;
}

// One tensor's elements, as the file will hold them.
struct Fetched {
  std::unique_ptr<std::byte[]> buffer;
  std::span<const std::byte> bytes;
  TensorSpec spec;
};

absl::StatusOr<Fetched> FetchOne(const client::Client& client, uint64_t id,
                                 const client::Progress& progress) {
  ASSIGN_OR_RETURN(const client::Tensor tensor, client.get(id));
  const size_t size = tensor.size_bytes();
  Fetched fetched;
  fetched.spec = tensor.spec();
  fetched.buffer = std::make_unique_for_overwrite<std::byte[]>(size);
  fetched.bytes = {fetched.buffer.get(), size};
  client::TransferOptions options;
  options.progress = progress;
  RETURN_IF_ERROR(tensor.fetch_into({fetched.buffer.get(), size}, options));
  return fetched;
}

absl::StatusOr<std::vector<Fetched>> FetchAll(const client::Client& client, const std::string& path,
                                              std::vector<Moved>& moved) {
  uint64_t total = 0;
  for (const Moved& wanted : moved) {
    total += wanted.tensor.size_bytes();
  }
  ProgressBar bar(BaseName(path));
  std::vector<Fetched> all;
  uint64_t before = 0;
  for (Moved& wanted : moved) {
    const double start = bar.seconds();
    ASSIGN_OR_RETURN(Fetched fetched,
                     FetchOne(client, wanted.tensor.id(),
                              [&](uint64_t done, uint64_t) { bar.Show(before + done, total); }));
    wanted.seconds = bar.seconds() - start;
    before += fetched.bytes.size();
    bar.Show(before, total);
    all.push_back(std::move(fetched));
  }
  return all;
}

absl::Status Save(const std::string& path, const std::vector<Fetched>& fetched,
                  const std::vector<Moved>& moved) {
  if (IsNpy(path)) {
    return Usage(client::SaveNpy(path, NpyArray{fetched[0].spec, fetched[0].bytes}));
  }
  std::vector<SafetensorsEntry> entries;
  entries.reserve(fetched.size());
  for (size_t i = 0; i < fetched.size(); ++i) {
    entries.push_back({moved[i].name, fetched[i].spec, fetched[i].bytes});
  }
  return Usage(client::SaveSafetensors(path, entries));
}

absl::Status Get(const Program& program, const GetArgs& args) {
  ASSIGN_OR_RETURN(const Wanted wanted, ParseWanted(args.items));
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  std::vector<v1::Tensor> tensors;
  for (const uint64_t id : wanted.ids) {
    ASSIGN_OR_RETURN(v1::Tensor tensor, GetTensor(server, id));
    if (IsNpy(wanted.path) && tensor.dtype() == v1::BF16) {
      return Usage(absl::InvalidArgumentError(absl::StrFormat(
          "tensor %d is bf16, which NumPy has not: get it as .safetensors, or cast it first: "
          "devserverctl apply cast %d --dtype f32",
          id, id)));
    }
    tensors.push_back(std::move(tensor));
  }
  const std::vector<std::string> names = NamesOf(tensors);
  std::vector<Moved> moved;
  moved.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    moved.push_back({std::move(tensors[i]), IsNpy(wanted.path) ? BaseName(wanted.path) : names[i]});
  }
  ASSIGN_OR_RETURN(const client::Client client, ConnectClient(program, /*default_session=*/true));
  ASSIGN_OR_RETURN(const std::vector<Fetched> fetched, FetchAll(client, wanted.path, moved));
  RETURN_IF_ERROR(Save(wanted.path, fetched, moved));
  Report(program, wanted.path, moved);
  return absl::OkStatus();
}

}  // namespace

void AddTransferCommands(CLI::App& app, Program& program) {
  CLI::App* const put = AddCommand(
      app, "put", "Upload a .npy or .safetensors file",
      "  devserverctl put images.npy -d gpu:0\n"
      "  devserverctl put mlp.safetensors -d gpu:0     all its tensors, labelled by name\n"
      "  devserverctl put mlp.safetensors --name layers.0.weight --name layers.0.bias\n"
      "All tensors of a file arrive, or none.");
  auto put_args = std::make_shared<PutArgs>();
  put->add_option("FILE", put_args->path, "NAME.npy or NAME.safetensors")->required();
  put->add_option("-d,--device", put_args->device, "Where to")
      ->capture_default_str()
      ->type_name("NAME");
  put->add_option("--label", put_args->label, "Free text for people; without it the name")
      ->type_name("TEXT");
  put->add_option("--name", put_args->names, "Only this tensor of a .safetensors; may be repeated")
      ->expected(1)
      ->type_name("NAME");
  put->callback([&program, put_args] {
    program.run = [&program, put_args] { return Put(program, *put_args); };
  });

  CLI::App* const get =
      AddCommand(app, "get", "Download tensors into a .npy or .safetensors file",
                 "  devserverctl get 3 product.npy\n"
                 "  devserverctl get 3 4 5 mlp.safetensors      named by their labels\n"
                 "FILE is replaced only when everything has arrived.");
  auto get_args = std::make_shared<GetArgs>();
  get->add_option("ID... FILE", get_args->items, "The tensors, then NAME.npy or NAME.safetensors")
      ->required()
      ->expected(-2);  // two or more
  get->callback([&program, get_args] {
    program.run = [&program, get_args] { return Get(program, *get_args); };
  });
}

}  // namespace devserver::ctl
