// matmul, dense, apply: ops on tensors that are there.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/ctl/program.h"
#include "client/ctl/server.h"
#include "client/ctl/text.h"
#include "server/base/status_macros.h"

namespace devserver::ctl {
namespace {

void PrintReply(const Program& program, const v1::TensorReply& reply) {
  program.json ? PrintJson(reply) : Print(TensorReplyText(reply));
}

absl::Status MatMul(const Program& program, const v1::MatMulRequest& request) {
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const v1::TensorReply reply,
                   server.Call(server.compute(), &v1::ComputeService::Stub::MatMul, request));
  PrintReply(program, reply);
  return absl::OkStatus();
}

struct DenseArgs {
  uint64_t x = 0;
  uint64_t w = 0;
  uint64_t bias = 0;
  std::string activation = "none";
  uint64_t id = 0;
};

absl::Status Dense(const Program& program, const DenseArgs& args) {
  v1::DenseRequest request;
  request.set_x(args.x);
  request.set_w(args.w);
  request.set_bias(args.bias);
  request.set_id(args.id);
  ASSIGN_OR_RETURN(const v1::Activation activation, ParseActivationText(args.activation));
  request.set_activation(activation);
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const v1::TensorReply reply,
                   server.Call(server.compute(), &v1::ComputeService::Stub::Dense, request));
  PrintReply(program, reply);
  return absl::OkStatus();
}

struct ApplyArgs {
  std::string op;
  std::vector<uint64_t> inputs;
  uint64_t id = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool keep_dims = false;
  std::string activation;
  std::string dtype;
  std::string axes;
  std::string shape;
  std::string starts;
  std::string stops;
};

using Dims = google::protobuf::RepeatedField<int64_t>;

absl::Status FillList(const std::string& text, const std::string& flag, Dims* list) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> values, ParseIntegers(text, flag));
  list->Add(values.begin(), values.end());
  return absl::OkStatus();
}

absl::StatusOr<v1::Op> MakeOp(const ApplyArgs& args) {
  v1::Op op;
  op.set_name(args.op);
  op.mutable_inputs()->Add(args.inputs.begin(), args.inputs.end());
  op.set_id(args.id);
  v1::Attributes& attributes = *op.mutable_attributes();
  attributes.set_transpose_a(args.transpose_a);
  attributes.set_transpose_b(args.transpose_b);
  attributes.set_keep_dims(args.keep_dims);
  if (!args.activation.empty()) {
    ASSIGN_OR_RETURN(const v1::Activation activation, ParseActivationText(args.activation));
    attributes.set_activation(activation);
  }
  if (!args.dtype.empty()) {
    ASSIGN_OR_RETURN(const v1::DType dtype, ParseDTypeText(args.dtype));
    attributes.set_dtype(dtype);
  }
  RETURN_IF_ERROR(FillList(args.axes, "--axes", attributes.mutable_axes()));
  RETURN_IF_ERROR(FillList(args.shape, "--shape", attributes.mutable_shape()));
  RETURN_IF_ERROR(FillList(args.starts, "--starts", attributes.mutable_starts()));
  RETURN_IF_ERROR(FillList(args.stops, "--stops", attributes.mutable_stops()));
  return op;
}

absl::Status Apply(const Program& program, const ApplyArgs& args) {
  ASSIGN_OR_RETURN(const v1::Op op, MakeOp(args));
  ASSIGN_OR_RETURN(const Server server, Server::Connect(program));
  ASSIGN_OR_RETURN(const v1::TensorReply reply,
                   server.Call(server.compute(), &v1::ComputeService::Stub::Apply, op));
  PrintReply(program, reply);
  return absl::OkStatus();
}

void AddMatMul(CLI::App& app, Program& program) {
  CLI::App* const matmul = AddCommand(
      app, "matmul", "Multiply matrices, or batches of them: out = A . B",
      "  devserverctl matmul 1 2\n"
      "  devserverctl matmul 1 2 --transpose-b      A . B^T\n"
      "Both must be on one device: nothing is moved for you (devserverctl copy --help).");
  struct Args {
    uint64_t a = 0;
    uint64_t b = 0;
    uint64_t id = 0;
    bool transpose_a = false;
    bool transpose_b = false;
  };
  auto args = std::make_shared<Args>();
  matmul->add_option("A", args->a, "Tensor [..,m,k]")->required();
  matmul->add_option("B", args->b, "Tensor [..,k,n]")->required();
  matmul->add_flag("--transpose-a", args->transpose_a, "A is [..,k,m]");
  matmul->add_flag("--transpose-b", args->transpose_b, "B is [..,n,k]");
  matmul->add_option("--id", args->id, "Id for the result; without it the server picks one")
      ->type_name("N");
  matmul->callback([&program, args] {
    program.run = [&program, args] {
      v1::MatMulRequest request;
      request.set_a(args->a);
      request.set_b(args->b);
      request.set_transpose_a(args->transpose_a);
      request.set_transpose_b(args->transpose_b);
      request.set_id(args->id);
      return MatMul(program, request);
    };
  });
}

void AddDense(CLI::App& app, Program& program) {
  CLI::App* const dense =
      AddCommand(app, "dense", "A Dense layer forward: out = activation(X . W + BIAS)",
                 "  devserverctl dense 1 2 3 --activation relu\n"
                 "  devserverctl dense 1 2                      without a bias");
  auto args = std::make_shared<DenseArgs>();
  dense->add_option("X", args->x, "Tensor [..,k]")->required();
  dense->add_option("W", args->w, "Tensor [k,n]")->required();
  dense->add_option("BIAS", args->bias, "Tensor [n]; none without it");
  dense->add_option("--activation", args->activation, "none, relu, gelu, tanh or sigmoid")
      ->capture_default_str();
  dense->add_option("--id", args->id, "Id for the result; without it the server picks one")
      ->type_name("N");
  dense->callback(
      [&program, args] { program.run = [&program, args] { return Dense(program, *args); }; });
}

void AddApply(CLI::App& app, Program& program) {
  CLI::App* const apply =
      AddCommand(app, "apply", "Any op by name",
                 "  devserverctl apply add 1 2\n"
                 "  devserverctl apply softmax 3 --axes -1\n"
                 "  devserverctl apply sum 3 --axes 0 --keep-dims\n"
                 "  devserverctl apply cast 3 --dtype f16\n"
                 "  devserverctl apply reshape 3 --shape 3,-1\n"
                 "  devserverctl apply slice 3 --starts 0,1 --stops 2,3\n"
                 "  devserverctl apply concat 1 2 3 --axes 0\n"
                 "devserverctl ops lists them, and which of these flags each reads.");
  auto args = std::make_shared<ApplyArgs>();
  apply->add_option("OP", args->op, "Its name: add, softmax, argmax")->required();
  apply->add_option("ID", args->inputs, "Its inputs, in order")->required();
  apply->add_option("--axes", args->axes, "Along these axes; -1 is the last")->type_name("LIST");
  apply->add_flag("--keep-dims", args->keep_dims, "Keep reduced axes with size 1");
  apply->add_option("--dtype", args->dtype, "cast: to this")->type_name("DTYPE");
  apply->add_option("--shape", args->shape, "reshape: to this; one -1 is inferred")
      ->type_name("LIST");
  apply->add_option("--starts", args->starts, "slice: one per axis")->type_name("LIST");
  apply->add_option("--stops", args->stops, "slice: exclusive")->type_name("LIST");
  apply->add_option("--activation", args->activation, "dense: relu, gelu, tanh or sigmoid")
      ->type_name("NAME");
  apply->add_flag("--transpose-a", args->transpose_a, "matmul");
  apply->add_flag("--transpose-b", args->transpose_b, "matmul");
  apply->add_option("--id", args->id, "Id for the result; without it the server picks one")
      ->type_name("N");
  apply->callback(
      [&program, args] { program.run = [&program, args] { return Apply(program, *args); }; });
}

}  // namespace

void AddOpCommands(CLI::App& app, Program& program) {
  AddMatMul(app, program);
  AddDense(app, program);
  AddApply(app, program);
}

}  // namespace devserver::ctl
