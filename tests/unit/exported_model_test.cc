// Tests the reading of exported models and the runs that train them, without LibTorch.
#include "run/exported_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/deflate.h"
#include "nlohmann/json.hpp"
#include "run/exported_model_json.h"
#include "run/exported_operations.h"
#include "run/graphs_text.h"
#include "run/model_layers.h"
#include "run/run_spec.h"
#include "run/text_model.h"
#include "tests/unit/exported_run.h"

namespace weft::exported_model_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

void ExpectRefused(const Json& run, const std::string& words) {
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(run);
  ASSERT_FALSE(spec.ok()) << words;
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(words));
}

TEST(ExportedModel, LargeGraphs_ArePackedAndMeanTheSame) {
  EXPECT_EQ(PackGraphs(TwoLayers()), TwoLayers());
  const Json packed = PackGraphs(LargeGraphs());
  ASSERT_TRUE(packed.is_string());
  EXPECT_LT(packed.dump().size(), LargeGraphs().dump().size() / 4);
  const absl::StatusOr<RunSpec> large = ParseRunSpec(RunOf(LargeGraphs())),
                                small = ParseRunSpec(RunOf(packed));
  ASSERT_TRUE(large.ok()) << large.status();
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(ToJson(*small)["model"]["exported"]["graphs"], packed);
  EXPECT_EQ(UnpackGraphs(packed).value(), LargeGraphs());
}

TEST(ExportedModel, WrongPackedGraphs_AreRefused) {
  const std::string packed = PackGraphs(LargeGraphs()).get<std::string>();
  ExpectRefused(RunOf("!"), "model.exported.graphs: is no base64");
  ExpectRefused(RunOf(packed.substr(0, packed.size() / 8 * 4)), "is no whole text in the form of zlib");
  ExpectRefused(RunOf(absl::Base64Escape(Deflate("no graphs"))), "is not JSON");
  ExpectRefused(RunOf(absl::Base64Escape(Deflate(std::string(kMaxGraphsBytes + 1, ' ')))),
                "has more than 16777216 bytes when it is inflated");
  ExpectRefused(RunOf(absl::Base64Escape(Deflate("[]"))), "model.exported");
}

TEST(ExportedModel, Fields_LieOneAfterTheOtherAligned) {
  const auto model = ParseExportedModel(TwoLayers());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->fields[0].bytes, 12);
  EXPECT_EQ((*model)->fields[1].begin, 16);
  EXPECT_EQ((*model)->sample_bytes, 24);
}

TEST(ExportedModel, Layers_AreAChainWhoseLastReadsDataToo) {
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(RunOf(TwoLayers()));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(ModelName(spec->model), "exported");
  const std::vector<LayerCount> layers = CountLayers(spec->model);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_TRUE(layers[0].inputs.empty() && layers[0].reads_data);
  EXPECT_THAT(layers[1].inputs, ElementsAre(0));
  EXPECT_TRUE(layers[1].reads_data);
  EXPECT_EQ(layers[0].parameters, 6);
  EXPECT_EQ(layers[0].forward_flops, 12);
  int64_t kept = 0;
  for (const KeptTensor& tensor : layers[0].kept) kept += tensor.sample_bytes;
  EXPECT_EQ(kept, 8 + 12) << "with the field that it reads";
  EXPECT_THAT(layers[0].output.sizes, ElementsAre(2));
}

TEST(ExportedModel, Parameters_HaveTheirNamesInTheStateDict) {
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(RunOf(TwoLayers()));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const LayerSpec layer = DescribeLayers(spec->model)[0];
  EXPECT_EQ(layer.parameters[0].file, "/m.weft/weights.safetensors");
  EXPECT_EQ(NameInModel(layer.name, layer.parameters[0]), "a.weight");
}

TEST(ExportedModel, SpecificationAsJson_IsTheSameAgain) {
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(RunOf(TwoLayers()));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<RunSpec> again = ParseRunSpec(ToJson(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToJson(*again), ToJson(*spec));
}

// The sum of the targets.
Json Count() {
  return Json::parse(R"({
    "name": "count", "reads": {"layers": [], "fields": ["target"]}, "parameters": [], "statistics": [],
    "constants": [], "values": 2, "operations": [{"op": "aten::sum", "arguments": [{"value": 0}, null],
    "results": [1]}], "output": {"value": 1},
    "costs": {"flops": 0, "activation_bytes": 0, "fixed_activation_bytes": 0, "work_bytes": 0}})");
}

TEST(ExportedModel, Count_IsAModelOfTheFieldsThatItReads) {
  Json graphs = TwoLayers();
  graphs["count"] = Count();
  const auto model = ParseExportedModel(graphs);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->sample_bytes, 24);
  const ExportedModel& count = *(*model)->count;
  EXPECT_EQ(count.sample_bytes, 8);
  EXPECT_EQ(count.fields[0].name, "target");
  EXPECT_EQ(count.fields[0].begin, 0);
  EXPECT_THAT(count.layers[0].fields, ElementsAre(0));
  EXPECT_EQ(ParseExportedModel(TwoLayers()).value()->count, nullptr);
}

// The same model in evaluation mode: the loss, and the sum of the targets with their number.
Json WithEvaluation() {
  Json graphs = TwoLayers();
  graphs["format"] = 3;
  graphs["evaluation"] = Json::parse(R"({
    "name": "evaluation", "reads": {"layers": [], "fields": ["odd", "target"]},
    "parameters": [{"name": "b.weight", "sizes": [2]}], "statistics": [], "constants": [], "values": 4,
    "operations": [{"op": "aten::stack", "arguments": [{"values": [2, 1, 1]}, 0], "results": [3]}],
    "output": {"value": 3}, "figures": [{"name": "loss", "counted": false}, {"name": "top5", "counted": true}],
    "costs": {"flops": 0, "activation_bytes": 0, "fixed_activation_bytes": 0, "work_bytes": 0}})");
  return graphs;
}

TEST(ExportedModel, Evaluation_IsAModelOfAllFieldsWhoseOutputAreItsFigures) {
  const auto model = ParseExportedModel(WithEvaluation());
  ASSERT_TRUE(model.ok()) << model.status();
  const ExportedModel& evaluation = *(*model)->evaluation;
  EXPECT_EQ(evaluation.sample_bytes, (*model)->sample_bytes);
  EXPECT_EQ(evaluation.fields[1].begin, (*model)->fields[1].begin);
  ASSERT_EQ(evaluation.figures.size(), 2u);
  EXPECT_EQ(evaluation.figures[1].name, "top5");
  EXPECT_TRUE(evaluation.figures[1].counted);
  EXPECT_THAT(evaluation.layers[0].output_sizes, ElementsAre(3)) << "one number, and two";
  EXPECT_EQ((*model)->figures.size(), 0u);
}

TEST(ExportedModel, WrongEvaluation_IsRefusedWithItsPlace) {
  const auto expect = [](const std::function<void(Json&)>& change, const std::string& words) {
    Json graphs = WithEvaluation();
    change(graphs["evaluation"]);
    ExpectRefused(RunOf(graphs), words);
  };
  expect([](Json& e) { e["parameters"][0]["name"] = "c.weight"; },
         "evaluation: reads c.weight, which no layer has");
  expect([](Json& e) { e["parameters"][0]["sizes"] = {3}; },
         "evaluation: reads b.weight, which no layer has");
  expect([](Json& e) { e["figures"][1]["name"] = "top 5"; },
         "evaluation.figures[1].name: is no name of letters");
  expect([](Json& e) { e["figures"][1]["name"] = "samples"; }, "or is taken");
  expect([](Json& e) { e["figures"][1]["name"] = "loss"; }, "evaluation.figures[1].name: stands twice");
  expect([](Json& e) { e["figures"].erase(0); }, "evaluation.figures: are not 1 to 64, the loss first");
  expect([](Json& e) { e["figures"][0].erase("counted"); },
         "evaluation.figures[0]: the field \"counted\" is missing");
  expect([](Json& e) { e = 3; }, "evaluation: is not an object");
  expect([](Json& e) { e["reads"]["layers"].push_back(0); },
         "evaluation.reads.layers: is not a whole number");
}

TEST(ExportedModel, ValidationWithoutAnEvaluation_IsRefusedWithTheReason) {
  Json without = WithEvaluation();
  without["evaluation"] = "its forward has no loss";
  Json run = RunOf(without);
  EXPECT_TRUE(ParseRunSpec(run).ok()) << "it can be trained";
  run["validate"] = {{"data", run["data"]}};
  ExpectRefused(
      run, "validate: the exported model /m.weft has no graph of its evaluation: its forward has no loss");
  run["model"]["exported"]["graphs"] = TwoLayers();
  ExpectRefused(run, "an older version exported it; export it again");
  run["model"]["exported"]["graphs"] = WithEvaluation();
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(CheckEvaluable(spec->model).ok());
  const absl::StatusOr<RunSpec> again = ParseRunSpec(ToJson(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToJson(*again), ToJson(*spec));
}

// Models have constants without elements, as an empty cache of keys.
TEST(ExportedModel, ConstantWithoutElements_IsOne) {
  Json graphs = TwoLayers();
  const auto add = [&](int64_t size) {
    graphs["layers"][0]["constants"] = {
        {{"name", "none"}, {"type", "F32"}, {"sizes", {size}}, {"frozen_parameter", false}}};
  };
  graphs["layers"][0]["operations"][0]["results"] = {3};
  graphs["layers"][0]["output"]["value"] = 3;
  graphs["layers"][0]["values"] = 4;
  add(0);
  EXPECT_TRUE(ParseExportedModel(graphs).ok()) << ParseExportedModel(graphs).status();
  add(-1);
  EXPECT_FALSE(ParseExportedModel(graphs).ok());
}

TEST(ExportedModel, CountThatReadsMoreThanData_IsRefused) {
  const auto expect = [](const std::function<void(Json&)>& change, const std::string& words) {
    Json graphs = TwoLayers();
    graphs["count"] = Count();
    change(graphs["count"]);
    ExpectRefused(RunOf(graphs), words);
  };
  expect(
      [](Json& c) {
        c["parameters"].push_back({{"name", "p"}, {"sizes", {1}}});
        c["operations"][0]["results"][0] = c["output"]["value"] = 2;
        c["values"] = 3;
      },
      "count: does not read data alone");
  expect([](Json& c) { c["reads"]["layers"].push_back(0); }, "count.reads.layers: is not a whole number");
}

TEST(ExportedModel, WrongFile_IsRefusedWithItsPlace) {
  const auto expect = [](const std::function<void(Json&)>& change, const std::string& words) {
    Json graphs = TwoLayers();
    change(graphs);
    ExpectRefused(RunOf(graphs), words);
  };
  expect([](Json& g) { g["format"] = 7; }, "/m.weft/model.json: has the format 7");
  expect([](Json& g) { g.erase("fields"); }, "the field \"fields\" is missing");
  expect([](Json& g) { g["layers"][0].erase("costs"); }, "layers[0]: the field \"costs\" is missing");
  expect([](Json& g) { g["layers"][0]["operations"][0]["op"] = "aten::from_file"; },
         "layers[0].operations[0].op: the operation aten::from_file, in m.py:3, is not among");
  expect([](Json& g) { g["layers"][1]["operations"][0]["arguments"][0]["value"] = 3; },
         "layers[1].operations[0].arguments: is not a whole number from 0 to 2");
  expect([](Json& g) { g["layers"][1]["operations"][1]["arguments"][1] = {{"code", "x"}}; }, "does not know");
  expect([](Json& g) { g["layers"][1]["parameters"][0]["name"] = "a.weight"; }, "a.weight stands twice");
  expect([](Json& g) { g["layers"][1]["reads"]["layers"] = {1}; },
         "layers: is not a whole number from 0 to 0");
  expect([](Json& g) { g["layers"][0]["output"]["of"] = "batch"; }, "of: is neither sample nor micro-batch");
  expect([](Json& g) { g["layers"][0]["output"]["sizes"] = {-1}; }, "layers[0].output.sizes");
  expect([](Json& g) { g["layers"][0]["values"] = 4; }, "layers[0].values: must be 3");
  expect([](Json& g) { g["layers"] = Json::array(); }, "layers: are not 1 to");
}

// A layer that hands out a parameter of two numbers, which the last of `readers` layers and all before use.
Json TiedLayers(int readers) {
  Json graphs = TwoLayers();
  Json& layers = graphs["layers"];
  Json tied = layers[0];
  tied["name"] = "tied";
  tied["reads"] = {{"layers", Json::array()}, {"fields", Json::array()}};
  tied["parameters"] = {{{"name", "t"}, {"sizes", {2}}}};
  tied["operations"] = {{{"op", "aten::clone"}, {"arguments", {{{"value", 0}}, nullptr}}, {"results", {1}}}};
  tied["values"] = 2;
  tied["output"] = {{"value", 1}, {"sizes", {2}}, {"of", "micro-batch"}};
  Json reader = layers[0];
  reader["operations"] = {
      {{"op", "aten::mul.Tensor"}, {"arguments", {{{"value", 0}}, {{"value", 1}}}}, {"results", {2}}}};
  reader["reads"]["fields"] = Json::array();
  reader["parameters"] = Json::array();
  const Json first = layers[0], last = layers[1];
  layers = {tied, first};
  for (int i = 0; i < readers; ++i) {
    reader["name"] = "reader" + std::to_string(i);
    reader["reads"]["layers"] = {0, i + 1};
    reader["values"] = 3;
    layers.push_back(reader);
  }
  layers.push_back(last);
  layers.back()["reads"]["layers"] = {readers + 1};
  return graphs;
}

TEST(ExportedModel, TiedParameter_IsALayerWhoseOutputHasNoSamples) {
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(RunOf(TiedLayers(2)));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::vector<LayerCount> layers = CountLayers(spec->model);
  EXPECT_TRUE(layers[0].reads_data) << "for the number of samples";
  EXPECT_EQ(layers[0].output.elements(100), 2);
  EXPECT_EQ(layers[1].output.elements(100), 200);
  EXPECT_THAT(layers[3].inputs, ElementsAre(0, 2));
  EXPECT_FALSE(layers[3].reads_data);
}

TEST(ExportedModel, Statistics_AreNoTrainedParametersAndHaveTheirMomentum) {
  Json graphs = TwoLayers();
  Json& last = graphs["layers"][1];
  last["statistics"] = {{{"name", "norm.running_mean"}, {"sizes", {2}}, {"momentum", 0.3}}};
  last["values"] = 6;
  last["operations"][0]["results"] = {4};
  last["operations"][1]["results"] = {5};
  last["operations"][1]["arguments"][0]["value"] = 4;
  last["output"]["value"] = 5;
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(RunOf(graphs));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(CountLayers(spec->model)[1].parameters, 2);
  EXPECT_EQ(CountLayers(spec->model)[1].statistics, 2);
  const ParameterSpec statistic = DescribeLayers(spec->model)[1].parameters.back();
  EXPECT_EQ(statistic.kind, ParameterSpec::Kind::kStatistic);
  EXPECT_EQ(statistic.momentum, 0.3f);
  EXPECT_EQ(NameInModel("last", statistic), "norm.running_mean");
  last["statistics"][0]["momentum"] = 1.5;
  ExpectRefused(RunOf(graphs), "statistics[0].momentum: is not a number from 0 to 1");
}

TEST(ExportedModel, WeightsOfTheRun_GoBeforeTheExportedOnes) {
  Json run = RunOf(TwoLayers());
  run["weights"] = "/w.safetensors";
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(DescribeLayers(spec->model)[0].parameters[0].file, "/w.safetensors");
  EXPECT_EQ(ToJson(*spec)["weights"], "/w.safetensors");
}

TEST(ExportedModel, LayerThatThreeOthersRead_IsRefused) {
  ExpectRefused(RunOf(TiedLayers(3)), "layers[0]: is read by 3 layers, not by 1 or 2");
}

TEST(ExportedModel, RunThatDoesNotFit_IsRefused) {
  Json run = RunOf(TwoLayers());
  run["data"]["arrays"].erase("target");
  ExpectRefused(
      run, "data.arrays: the model's field target has no file; write data: {arrays: {odd: .., target: ..}}");
  run["data"]["arrays"]["traget"] = "/t.npy";
  run["data"]["arrays"]["target"] = "/t.npy";
  ExpectRefused(run, "data.arrays.traget: unknown field \"traget\"; did you mean \"target\"?");
  run = RunOf(TwoLayers());
  run["data"] = {{"text", {{"path", "/t.txt"}}}};
  ExpectRefused(run, "data.text: the model's field odd gets no tokens; name each field once: inputs: [..]");
  run["data"] = {{"idx", {{"images", "/i"}, {"labels", "/l"}}}};
  ExpectRefused(run, "an exported model learns from arrays, or from the tokens of a text");
  run = RunOf(TwoLayers());
  run["precision"] = "bf16";
  ExpectRefused(run, "precision: the graphs of /m.weft compute in float32, and the run in bf16");
  run = RunOf(TwoLayers());
  run["model"] = "mlp";
  ExpectRefused(run, "arrays are the data of an exported model");
  run["model"] = {{"exported", "folder"}};
  ExpectRefused(run, "must be the folder that weft.export wrote");
}

TEST(ExportedModel, GraphsInBfloat16_TakeARunInThatPrecisionAlone) {
  Json graphs = TwoLayers();
  graphs["precision"] = "bf16";
  graphs["elsewhere"] = {"only.float32"};
  graphs["layers"][0]["parameters"][0]["type"] = "BF16";
  Json run = RunOf(graphs);
  ExpectRefused(run, "precision: the graphs of /m.weft compute in bf16, and the run in float32");
  run["precision"] = "bf16";
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::vector<LayerSpec> layers = DescribeLayers(spec->model);
  EXPECT_FALSE(layers[0].parameters[0].is_wide());
  EXPECT_TRUE(layers[1].parameters[0].is_wide()) << "a parameter without a type is read in float32";
  EXPECT_THAT(std::get<ExportedSpec>(spec->model).model->elsewhere, ElementsAre("only.float32"));
  EXPECT_EQ(ToJson(*spec)["model"], run["model"]);
}

TEST(ExportedModel, WrongPrecision_IsRefusedWithItsFile) {
  Json graphs = TwoLayers();
  graphs["precision"] = "half";
  ExpectRefused(RunOf(graphs), "/m.weft/model.json: precision: is neither float32 nor bf16");
  graphs["precision"] = "bf16";
  graphs["layers"][0]["parameters"][0]["type"] = "F16";
  ExpectRefused(RunOf(graphs), "/m.weft/model.bf16.json: layers[0].parameters[0].type: must be F32 or BF16");
}

TEST(ExportedModel, Tf32_TakesTheGraphsInFloat32) {
  Json run = RunOf(TwoLayers());
  run["precision"] = "tf32";
  EXPECT_TRUE(ParseRunSpec(run).ok()) << ParseRunSpec(run).status();
}

TEST(Plugins, ModelWithForeignOperation_NeedsALibrary) {
  Json graphs = TwoLayers();
  graphs["layers"][0]["operations"][0]["op"] = "mynet::rope";
  Json run = RunOf(graphs);
  ExpectRefused(run, "model.exported: calls mynet::rope, in m.py:3, which LibTorch does not have");
  const Json plugin = {{"library", "/librope.so"}, {"sha256", std::string(64, 'a')}};
  run["plugins"] = {plugin};
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(std::get<ExportedSpec>(spec->model).plugins,
              ElementsAre(PluginSpec{"/librope.so", std::string(64, 'a')}));
  EXPECT_EQ(ToJson(*spec)["plugins"], run["plugins"]);
}

TEST(Plugins, WrongList_IsRefusedWithItsPlace) {
  const auto expect = [](const Json& plugins, const std::string& words) {
    Json run = RunOf(TwoLayers());
    run["plugins"] = plugins;
    ExpectRefused(run, words);
  };
  expect(Json::array(), "plugins: must be a list of 1 to 16 libraries");
  expect("librope.so", "plugins: must be a list of 1 to 16 libraries");
  expect({{{"library", "/librope.so"}}}, "plugins[0]");
  expect({{{"library", "/librope.so"}, {"sha256", std::string(64, 'A')}}},
         "plugins[0].sha256: must be the 64");
  expect({{{"library", ""}, {"sha256", std::string(64, 'a')}}}, "plugins[0].library: must be the path");
}

TEST(TextModel, ModelsThatWriteNoText_SayWhatTheyLack) {
  const auto run = ParseRunSpec(RunOf(TwoLayers()));
  ASSERT_TRUE(run.ok()) << run.status();
  ExportedSpec spec = std::get<ExportedSpec>(run->model);
  const auto lacks = [&spec] { return std::string(TextModelOf(spec).status().message()); };
  auto model = std::make_shared<ExportedModel>(*spec.model);
  model->evaluation = nullptr;
  model->no_evaluation = "it was exported without weights";
  spec.model = model;
  EXPECT_EQ(lacks(), "has no graph of its evaluation, and so no scores: it was exported without weights");
  auto evaluation = std::make_shared<ExportedModel>();
  evaluation->layers.emplace_back().values = 3;
  evaluation->layers[0].fields = {0};
  model->evaluation = evaluation;
  EXPECT_THAT(lacks(), HasSubstr("its loss in evaluation mode is not one cross entropy of scores"));
  evaluation->layers[0].operations = {
      {"aten::cross_entropy_loss", "", {GraphValue{0}, GraphValue{1}}, {2}, ""}};
  EXPECT_THAT(lacks(), HasSubstr("and not on one field of tokens that an embedding looks up"));
  EXPECT_EQ(TextModelOf(MlpSpec()).status().message(),
            "is mlp; only a gpt, or an exported language model, writes text");
}

TEST(TextModel, TokensOfSample_AreTheContextOrTheExamplesLength) {
  RunSpec run = *ParseRunSpec(RunOf(TwoLayers()));
  EXPECT_EQ(TokensOfSample(run), 0) << "its data are arrays";
  run.data.source = TextData();
  EXPECT_EQ(TokensOfSample(run), std::get<ExportedSpec>(run.model).model->fields[0].sizes[0]);
  run.model = GptSpec{.context = 20};
  EXPECT_EQ(TokensOfSample(run), 20);
  run.data.source = IdxData();
  EXPECT_EQ(TokensOfSample(run), 0);
}

TEST(ExportedOperations, Foreign_AreThoseOfAnotherNamespace) {
  EXPECT_TRUE(IsForeignOperation("mynet::rope_2"));
  for (const char* refused :
       {"aten::linear", "aten::anything", "rope", "::rope", "mynet::", "a::b::c", "a::b c"})
    EXPECT_FALSE(IsForeignOperation(refused)) << refused;
}

TEST(ExportedOperations, ThoseThatReadValuesOnTheHost_AreAllowedOnes) {
  for (const char* reads :
       {"aten::linalg_cholesky", "aten::linalg_eigh", "aten::linalg_inv", "aten::linalg_matrix_exp",
        "aten::linalg_matrix_power", "aten::linalg_solve", "aten::linalg_svd"}) {
    EXPECT_TRUE(ReadsValuesOnHost({reads, "", {}, {}, ""})) << reads;
    EXPECT_TRUE(IsExportedOperation(reads)) << reads;
  }
  EXPECT_FALSE(ReadsValuesOnHost({"aten::linear", "", {}, {}, ""}));
}

TEST(ExportedOperations, ThoseThatReadValuesWithSomeArguments_DoNotWithOthers) {
  const GraphArgument x = GraphValue{0}, none, one = GraphNumbers{int64_t{-1}};
  const GraphArgument two = GraphNumbers{int64_t{-2}, int64_t{-1}};
  const GraphOperation reads[] = {
      {"aten::linalg_matrix_norm", "", {x, int64_t{2}, two, false, none}, {}, ""},
      {"aten::linalg_matrix_norm", "str_ord", {x, std::string("nuc"), two, false, none}, {}, ""},
      {"aten::linalg_norm", "", {x, -2.0, none, false, none}, {}, ""},
      {"aten::linalg_norm", "ord_str", {x, std::string("nuc"), two, false, none}, {}, ""},
      {"aten::one_hot", "", {x, int64_t{-1}}, {}, ""},
      {"aten::repeat_interleave", "Tensor", {x, none}, {}, ""},
      {"aten::repeat_interleave", "self_Tensor", {x, GraphValue{1}, int64_t{0}, none}, {}, ""},
      {"aten::tensor_split", "tensor_indices_or_sections", {x, GraphValue{1}, int64_t{0}}, {}, ""}};
  for (const GraphOperation& o : reads) EXPECT_TRUE(ReadsValuesOnHost(o)) << o.name << "." << o.overload;
  const GraphOperation others[] = {
      {"aten::linalg_matrix_norm", "str_ord", {x, std::string("fro"), two, false, none}, {}, ""},
      {"aten::linalg_matrix_norm", "", {x, int64_t{1}, two, false, none}, {}, ""},
      {"aten::linalg_norm", "", {x, none, none, false, none}, {}, ""},
      {"aten::linalg_norm", "", {x, int64_t{2}, one, false, none}, {}, ""},
      {"aten::one_hot", "", {x, int64_t{5}}, {}, ""},
      {"aten::repeat_interleave", "self_int", {x, int64_t{2}, int64_t{0}, none}, {}, ""},
      {"aten::repeat_interleave", "self_Tensor", {x, GraphValue{1}, int64_t{0}, int64_t{9}}, {}, ""},
      {"aten::tensor_split", "sections", {x, int64_t{2}, int64_t{0}}, {}, ""}};
  for (const GraphOperation& o : others) EXPECT_FALSE(ReadsValuesOnHost(o)) << o.name << "." << o.overload;
}

TEST(ExportedOperations, List_HasFunctionalOperationsOnly) {
  EXPECT_TRUE(IsExportedOperation("aten::linear"));
  for (const char* refused :
       {"aten::linear_", "aten::add_", "aten::from_file", "aten::poisson", "aten::save", ""})
    EXPECT_FALSE(IsExportedOperation(refused)) << refused;
}

TEST(ExportedModel, SeveralFilesOfAField_AreKeptInTheirOrder) {
  Json run = RunOf(TwoLayers());
  run["data"]["arrays"]["odd"] = {"/1.npy", "/0.npy"};
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(std::get<ArraysData>(spec->data.source).paths.at("odd"),
            (std::vector<std::string>{"/1.npy", "/0.npy"}));
  const Json written = ToJson(*spec)["data"]["arrays"];
  EXPECT_EQ(written["odd"], run["data"]["arrays"]["odd"]);
  EXPECT_EQ(written["target"], "/target.npy") << "a list only where there are several";
  for (const Json& wrong : {Json::array(), Json(3), Json({"/a.npy", 3})}) {
    run["data"]["arrays"]["odd"] = wrong;
    ExpectRefused(run, "data.arrays.odd: must be the path of a NumPy file, or a list of them");
  }
}

TEST(ExportedModel, FileOfTokens_FillsFieldsThatAreRowsOfNumbers) {
  Json graphs = TwoLayers();
  Json run = RunOf(graphs);
  run["data"] = {
      {"text", {{"path", "/t.bin"}, {"tokens", "uint16"}, {"inputs", "odd"}, {"targets", "target"}}}};
  ExpectRefused(run, "data.text: the model's field odd is no row of whole numbers");
  for (Json& field : graphs["fields"]) field = {{"name", field["name"]}, {"type", "I64"}, {"sizes", {3}}};
  run["model"]["exported"]["graphs"] = graphs;
  const absl::StatusOr<RunSpec> spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(ToJson(*ParseRunSpec(ToJson(*spec))), ToJson(*spec));
  EXPECT_EQ(std::get<TextData>(spec->data.source).targets, std::vector<std::string>{"target"});
  run["data"]["text"]["inputs"] = {"odd", "target"};
  ExpectRefused(run, "data.text: the model's field target is named more than once");
  run["data"]["text"].erase("targets");
  EXPECT_TRUE(ParseRunSpec(run).ok());
  run["data"]["text"]["inputs"] = "odd";
  ExpectRefused(run, "data.text: the model's field target gets no tokens");
  run["data"]["text"]["inputs"] = {"odd", "target", "od"};
  ExpectRefused(run, "unknown field \"od\"; did you mean \"odd\"?");
  run["model"] = {{"gpt", {{"layers", 2}}}};
  ExpectRefused(run, "data.text: names fields, which only an exported model has");
}

}  // namespace
}  // namespace weft::exported_model_test
