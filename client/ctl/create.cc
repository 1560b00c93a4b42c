// create: tensors from a recipe or a few values.
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/ctl/server.h"
#include "client/ctl/text.h"
#include "server/base/status_macros.h"

namespace devserver::ctl {
namespace {

struct CreateArgs {
  std::string shape;
  std::string dtype = "f32";
  std::string device;
  std::string label;
  uint64_t id = 0;
  // What is in it: at most one of these.
  bool zeros = false;
  bool ones = false;
  bool uniform = false;
  bool normal = false;
  bool arange = false;
  bool eye = false;
  std::string fill;
  std::string values;
  // How the recipes are seasoned.
  uint64_t seed = 0;
  double low = 0;
  double high = 1;
  double mean = 0;
  double stddev = 1;
  double start = 0;
  double step = 1;
};

bool IsInteger(v1::DType dtype) {
  return dtype == v1::I32 || dtype == v1::I64 || dtype == v1::U8 || dtype == v1::BOOL;
}

// Whole numbers go as such: an i64 beyond 2^53 does not survive a double.
absl::Status FillValues(const std::string& text, v1::DType dtype, v1::Values* values) {
  if (IsInteger(dtype)) {
    if (const absl::StatusOr<std::vector<int64_t>> integers = ParseIntegers(text, "--values");
        integers.ok()) {
      values->mutable_integers()->Add(integers->begin(), integers->end());
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(const std::vector<double> numbers, ParseNumbers(text, "--values"));
  values->mutable_numbers()->Add(numbers.begin(), numbers.end());
  return absl::OkStatus();
}

absl::StatusOr<v1::Create> MakeRequest(const CreateArgs& args) {
  v1::Create request;
  ASSIGN_OR_RETURN(const std::vector<int64_t> shape, ParseIntegers(args.shape, "SHAPE"));
  request.mutable_shape()->Add(shape.begin(), shape.end());
  ASSIGN_OR_RETURN(const v1::DType dtype, ParseDTypeText(args.dtype));
  request.set_dtype(dtype);
  request.set_device(args.device);
  request.set_label(args.label);
  request.set_id(args.id);
  if (args.ones) {
    request.set_fill(1);
  } else if (!args.fill.empty()) {
    ASSIGN_OR_RETURN(const std::vector<double> fill, ParseNumbers(args.fill, "--fill"));
    if (fill.size() != 1) {
      return Usage(absl::InvalidArgumentError(absl::StrFormat(
          "--fill \"%s\": give one number; a list is --values", Printable(args.fill))));
    }
    request.set_fill(fill[0]);
  } else if (!args.values.empty()) {
    RETURN_IF_ERROR(FillValues(args.values, dtype, request.mutable_values()));
  } else if (args.uniform) {
    request.mutable_uniform()->set_seed(args.seed);
    request.mutable_uniform()->set_low(args.low);
    request.mutable_uniform()->set_high(args.high);
  } else if (args.normal) {
    request.mutable_normal()->set_seed(args.seed);
    request.mutable_normal()->set_mean(args.mean);
    request.mutable_normal()->set_stddev(args.stddev);
  } else if (args.arange) {
    request.mutable_arange()->set_start(args.start);
    request.mutable_arange()->set_step(args.step);
  } else if (args.eye) {
    request.set_eye(true);
  }
  return request;
}

absl::Status Create(const Program& program, const CreateArgs& args) {
  ASSIGN_OR_RETURN(const v1::Create request, MakeRequest(args));
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const v1::TensorReply reply,
                   server.Call(server.tensors(), &v1::TensorService::Stub::CreateTensor, request));
  program.json ? PrintJson(reply) : Print(TensorReplyText(reply));
  return absl::OkStatus();
}

void AddContentOptions(CLI::App* create, CreateArgs& args) {
  CLI::Option_group* const content =
      create->add_option_group("Content", "What is in it: one of these, or else zeros");
  content->add_flag("--zeros", args.zeros, "Zeros");
  content->add_flag("--ones", args.ones, "Ones");
  content->add_option("--fill", args.fill, "One number everywhere: 0.5, -1, nan, inf")
      ->type_name("X");
  content->add_option("--values", args.values, "These, row by row: 1,2,3 or [[1,2],[3,4]]")
      ->type_name("LIST");
  content->add_flag("--uniform", args.uniform, "Random, evenly spread over [--low, --high)");
  content->add_flag("--normal", args.normal, "Random, normal with --mean and --stddev");
  content->add_flag("--arange", args.arange, "--start, --start + --step, ..");
  content->add_flag("--eye", args.eye, "Ones on the diagonal");
  content->require_option(0, 1);
}

void AddRecipeOptions(CLI::App* create, CreateArgs& args) {
  CLI::Option_group* const recipe = create->add_option_group("Recipe");
  recipe->add_option("--seed", args.seed, "The same numbers for one seed, on every device")
      ->type_name("N");
  recipe->add_option("--low", args.low, "For --uniform")->capture_default_str()->type_name("X");
  recipe->add_option("--high", args.high, "For --uniform")->capture_default_str()->type_name("X");
  recipe->add_option("--mean", args.mean, "For --normal")->capture_default_str()->type_name("X");
  recipe->add_option("--stddev", args.stddev, "For --normal")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("X");
  recipe->add_option("--start", args.start, "For --arange")->capture_default_str()->type_name("X");
  recipe->add_option("--step", args.step, "For --arange")->capture_default_str()->type_name("X");
}

}  // namespace

void AddCreateCommand(CLI::App& app, Program& program) {
  CLI::App* const create =
      AddCommand(app, "create", "Make a tensor from a recipe or a few values",
                 "  devserverctl create 2,3 --ones                          f32[2,3] on cpu:0\n"
                 "  devserverctl create 2x3 --uniform --seed 7 -d gpu:1\n"
                 "  devserverctl create 2,2 --values [[1,2],[3,4]] --dtype i64\n"
                 "  devserverctl create [] --fill -inf --dtype f64          a scalar\n"
                 "  devserverctl create 10 --arange --step 0.5 --label x\n"
                 "Larger tensors come from files: devserverctl put --help");
  auto args = std::make_shared<CreateArgs>();
  create->add_option("SHAPE", args->shape, "Sizes: 2,3 or 2x3; [] for a scalar")->required();
  create->add_option("--dtype", args->dtype, "f32, f64, f16, bf16, i32, i64, u8 or bool")
      ->capture_default_str();
  create->add_option("-d,--device", args->device, "Where: cpu, gpu:1; without it cpu:0")
      ->type_name("NAME");
  create->add_option("--label", args->label, "Free text for people; ps shows it")
      ->type_name("TEXT");
  create->add_option("--id", args->id, "Its id; without it the server picks the next small number")
      ->type_name("N");
  AddContentOptions(create, *args);
  AddRecipeOptions(create, *args);
  create->callback(
      [&program, args] { program.run = [&program, args] { return Create(program, *args); }; });
}

}  // namespace devserver::ctl
