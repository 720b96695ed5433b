#include "run/run_spec.h"

#include <algorithm>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "run/model_layers.h"
#include "run/run_memory.h"
#include "run/run_schedule.h"
#include "schedules/sync/catalogue.h"
#include "tests/unit/small_run_spec.h"

namespace weft::run_spec_test {
namespace {

using ::testing::ElementsAre;

TEST(RunSpec_Gpt, EveryKeyGiven_AllFieldsRead) {
  const auto spec = ParseRunSpec(GptRun());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "small");
  const auto& gpt = std::get<GptSpec>(spec->model);
  EXPECT_EQ(gpt.layers, 4);
  EXPECT_EQ(gpt.width, 32);
  EXPECT_EQ(gpt.heads, 2);
  EXPECT_EQ(gpt.context, 16);
  EXPECT_EQ(gpt.vocabulary, 256);
  EXPECT_EQ(std::get<TextData>(spec->data.source).path, "/data/a.txt");
  EXPECT_EQ(spec->train.steps, 3);
  EXPECT_EQ(spec->train.seed, 7u);
  EXPECT_EQ(spec->microbatch_samples(), 4);
  EXPECT_DOUBLE_EQ(std::get<AdamWSpec>(spec->train.optimizer).lr, 1e-3);
  EXPECT_EQ(spec->stages(), 4);
  EXPECT_EQ(std::accumulate(spec->layers_of_stage.begin(), spec->layers_of_stage.end(), 0), 6);
  EXPECT_EQ(spec->schedule.name, "lpp");
  EXPECT_EQ(spec->schedule.parameters.at("groups"), "2");
  EXPECT_EQ(spec->schedule.parameters.at("ranks"), "4");
}

TEST(RunSpec_Mlp, NamesAlone_TakeDefaults) {
  Json run = With("/model", "mlp");
  run["data"] = {{"idx", {{"images", "i"}, {"labels", "l"}}}};
  run["train"]["optimizer"] = "adamw";
  run["stages"] = 3;
  run["schedule"] = "1f1b";
  const auto spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(std::get<MlpSpec>(spec->model).layers, 3);
  EXPECT_EQ(std::get<IdxData>(spec->data.source).labels, "l");
  EXPECT_EQ(spec->data.order, "sequential");
  EXPECT_DOUBLE_EQ(std::get<AdamWSpec>(spec->train.optimizer).beta2, 0.999);
  EXPECT_EQ(spec->schedule.name, "1f1b");
  EXPECT_TRUE(spec->schedule.parameters.empty());
}

TEST(RunSpec, Record_OfHashes_IsReadAndWritten) {
  EXPECT_FALSE(ParseRunSpec(GptRun())->record_hashes);
  EXPECT_FALSE(ToJson(*ParseRunSpec(GptRun())).contains("record"));
  const auto spec = ParseRunSpec(With("/record", "hashes"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->record_hashes);
  EXPECT_TRUE(ParseRunSpec(ToJson(*spec))->record_hashes);
  ExpectRefused({With("/record", "hash"), "record", "hashes"});
  ExpectRefused({With("/record", true), "record", ""});
}

TEST(RunSpec, Network_IsReadAndWritten) {
  EXPECT_FALSE(ParseRunSpec(GptRun())->network.has_value());
  EXPECT_FALSE(ToJson(*ParseRunSpec(GptRun())).contains("network"));
  const Json network = {{"links", "port"},
                        {"bandwidth", "10GB"},
                        {"latency", 0.25},
                        {"nodes", {2, 2}},
                        {"between", {{"bandwidth", 5}, {"latency", 3}}},
                        {"speeds", {1, 1, 0.5, 1}}};
  const auto spec = ParseRunSpec(With("/network", network));
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(spec->network.has_value());
  EXPECT_DOUBLE_EQ(spec->network->bandwidth, 1e10);
  EXPECT_DOUBLE_EQ(spec->network->latency, 0.25);
  EXPECT_EQ(spec->network->network.links, LinkSharing::kPort);
  EXPECT_THAT(spec->network->network.nodes, ElementsAre(2, 2));
  EXPECT_DOUBLE_EQ(spec->network->network.bandwidth_between, 5);
  EXPECT_DOUBLE_EQ(spec->network->network.latency_between, 3);
  EXPECT_THAT(spec->network->network.speeds, ElementsAre(1, 1, 0.5, 1));
  const Json written = ToJson(*spec);
  EXPECT_EQ(ToJson(*ParseRunSpec(written)), written);
  EXPECT_EQ(written["network"]["between"], network["between"]);
}

TEST(RunSpec, NetworkWithMistakes_IsRefusedWithItsPlace) {
  ExpectRefused({With("/network", {{"link", "port"}}), "network.link", "unknown key"});
  ExpectRefused({With("/network", {{"links", "prot"}}), "network.links", "did you mean \"port\"?"});
  ExpectRefused({With("/network", {{"bandwidth", -1}}), "network.bandwidth", "from 1e-30"});
  ExpectRefused({With("/network", {{"bandwidth", 0}}), "network.bandwidth", "from 1e-30"});
  ExpectRefused({With("/network", {{"bandwidth", "0GB"}}), "network.bandwidth", "from 1e-30"});
  ExpectRefused({With("/network", {{"bandwidth", "1e40GB"}}), "network.bandwidth", "to 1e+30"});
  ExpectRefused({With("/network", {{"bandwidth", "-1GB"}}), "network.bandwidth", "as 10GB"});
  ExpectRefused({With("/network", {{"latency", "low"}}), "network.latency", "number"});
  ExpectRefused({With("/network", {{"between", {{"latency", 1}}}}), "network.between", "nodes: [4, 4]"});
  ExpectRefused(
      {With("/network", {{"nodes", {4}}, {"between", {{"latency", -1}}}}), "network.between.latency", "0"});
  ExpectRefused({With("/network", {{"nodes", {4, 0}}}), "network.nodes[1]", "at least 1 rank"});
  ExpectRefused({With("/network", {{"nodes", 4}}), "network.nodes", "list of whole numbers"});
  ExpectRefused({With("/network", {{"speeds", {1, 0.5, 0, 1}}}), "network.speeds[2]", "the speed of rank 2"});
  ExpectRefused({With("/network", {{"speeds", {1, 1e-320, 1, 1}}}), "network.speeds[1]",
                 "the speed of rank 1 must be from 1e-09 to 1e+09"});
  ExpectRefused({With("/network", {{"bandwidth", 1e-320}}), "network.bandwidth", "from 1e-30"});
  ExpectRefused({With("/network", {{"speeds", Json::array()}}), "network.speeds", "list of numbers"});
}

TEST(RunSpec, JobTimeout_IsReadAndBounded) {
  EXPECT_EQ(ParseRunSpec(GptRun())->job_timeout, (JobTimeoutSpec{10, 60, 3600}));
  EXPECT_FALSE(ToJson(*ParseRunSpec(GptRun())).contains("job_timeout"));
  const auto spec = ParseRunSpec(With("/job_timeout", {{"times", 2.5}, {"first", 7200}}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->job_timeout, (JobTimeoutSpec{2.5, 60, 7200}));
  EXPECT_EQ(ParseRunSpec(ToJson(*spec))->job_timeout, spec->job_timeout);
  ExpectRefused({With("/job_timeout", {{"times", 0.5}}), "job_timeout.times", "1"});
  ExpectRefused({With("/job_timeout", {{"at_least", 0}}), "job_timeout.at_least", "1"});
  ExpectRefused({With("/job_timeout", {{"last", 5}}), "job_timeout.last", "first"});
}

TEST(RunSpec, Redundancy_OfOnePeer_IsReadAndWritten) {
  EXPECT_EQ(ParseRunSpec(GptRun())->redundancy, 0);
  EXPECT_FALSE(ToJson(*ParseRunSpec(GptRun())).contains("redundancy"));
  const auto spec = ParseRunSpec(With("/redundancy", {{"peers", 1}}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->redundancy, 1);
  EXPECT_EQ(ParseRunSpec(ToJson(*spec))->redundancy, 1);
  ExpectRefused({With("/redundancy", {{"peers", 2}}), "redundancy.peers", "1"});
  ExpectRefused({With("/redundancy", Json::object()), "redundancy.peers", "peers: 1"});
  ExpectRefused({With("/redundancy", {{"peer", 1}}), "redundancy.peer", "peers"});
  Json never = With("/redundancy", {{"peers", 1}});
  never["restarts"] = 0;
  ExpectRefused({never, "redundancy", "`restarts: 0` never begins again"});
}

TEST(RunSpec, Replan_IsReadAsAPart) {
  EXPECT_FALSE(ParseRunSpec(GptRun())->replan.any());
  for (const Json& gain : {Json("5 %"), Json("5%"), Json(0.05)}) {
    const auto spec = ParseRunSpec(With("/replan", {{"gain", gain}, {"steps", 7}}));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_DOUBLE_EQ(spec->replan.gain, 0.05);
    EXPECT_EQ(ParseRunSpec(ToJson(*spec))->replan.steps, 7);
  }
  for (const Json& gain :
       {Json("-5 %"), Json("100 %"), Json("5"), Json("many %"), Json(0), Json(5), Json(true)})
    ExpectRefused({With("/replan", {{"gain", gain}}), "replan.gain", "as 5 % or 0.05"});
  ExpectRefused({With("/replan", Json::object()), "replan.gain", "gain: 5 %"});
  ExpectRefused({With("/replan", {{"gain", 0.1}, {"steps", 0}}), "replan.steps", "1"});
  Json fast = With("/replan", {{"gain", 0.1}});
  fast["schedule"]["reduction"] = "fast";
  ExpectRefused({fast, "replan", "reduction: ordered"});
}

// Only a coordinator knows of copies in memory; their folder has no name.
TEST(RunSpec, ResumeFromCopies_IsReadAndWritten) {
  const auto spec = ParseRunSpec(With("/resume", {{"copies", true}, {"step", 2}}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->resume.copies);
  EXPECT_EQ(spec->first_step(), 2);
  EXPECT_TRUE(ParseRunSpec(ToJson(*spec))->resume.copies);
  ExpectRefused({With("/resume", {{"copies", true}, {"step", 2}, {"checkpoint", "c"}}), "resume.checkpoint",
                 "must be a checkpoint's folder"});
}

TEST(RunSpec, Validate_ReadsDataAndDefaultsToTenPointsOfAllSamples) {
  const Json data = {{"text", {{"path", "/data/held_out.txt"}}}};
  EXPECT_FALSE(ParseRunSpec(GptRun())->validate.any());
  const auto all = ParseRunSpec(With("/validate", {{"data", data}}));
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->validate.every, 1) << "of three steps";
  EXPECT_EQ(all->validate.samples, 0);
  EXPECT_TRUE(ParseRunSpec(With("/validate", {{"data", data}, {"samples", "all"}})).ok());
  Json run = With("/validate", {{"data", data}, {"every", 2}, {"samples", 8}});
  run["train"]["steps"] = 25;
  const auto some = ParseRunSpec(run);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(std::get<TextData>(some->validate.data.source).path, "/data/held_out.txt");
  EXPECT_EQ(std::get<TextData>(ValidationRun(*some).data.source).path, "/data/held_out.txt");
  EXPECT_EQ(some->validate.every, 2);
  EXPECT_EQ(some->validate.samples, 8);
  EXPECT_FALSE(some->ValidatesAfter(0));
  EXPECT_TRUE(some->ValidatesAfter(2));
  EXPECT_FALSE(some->ValidatesAfter(3));
  EXPECT_TRUE(some->ValidatesAfter(25)) << "the last";
  EXPECT_EQ(ToJson(*ParseRunSpec(ToJson(*some))), ToJson(*some));
  run["validate"].erase("every");
  EXPECT_EQ(ParseRunSpec(run)->validate.every, 3);
}

TEST(RunSpec, ValidateThatIsNone_Refused) {
  const Json data = {{"text", {{"path", "/data/held_out.txt"}}}};
  ExpectRefused({With("/validate", {{"every", 2}}), "validate.data", "is missing"});
  ExpectRefused({With("/validate", {{"data", data}, {"evry", 2}}), "validate.evry", "did you mean"});
  ExpectRefused({With("/validate", {{"data", data}, {"every", 0}}), "validate.every", "from 1 to"});
  ExpectRefused({With("/validate", {{"data", data}, {"samples", 0}}), "validate.samples", "from 1 to"});
  Json ordered = data;
  ordered["order"] = "shuffled";
  ExpectRefused({With("/validate", {{"data", ordered}}), "validate.data.order", ""});
  const Json images = {{"idx", {{"images", "i"}, {"labels", "l"}}}};
  ExpectRefused({With("/validate", {{"data", images}}), "validate.data", "learns from text"});
}

TEST(RunSpec_Mlp, Gelu_FusedOrApart) {
  Json run = With("/model", {{"mlp", {{"gelu", "apart"}}}});
  run["data"] = {{"idx", {{"images", "i"}, {"labels", "l"}}}};
  const auto spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(std::get<MlpSpec>(spec->model).gelu_apart);
  EXPECT_EQ(ToJson(*spec)["model"]["mlp"]["gelu"], "apart");
  run["model"]["mlp"]["gelu"] = "apar";
  ExpectRefused({run, "model.mlp.gelu", "did you mean \"apart\"?"});
}

TEST(RunSpec_Stages, ListOfLayers_KeptAsGiven) {
  const auto spec = ParseRunSpec(With("/stages", {1, 3, 2}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->layers_of_stage, ElementsAre(1, 3, 2));
}

TEST(RunSpec_Seed, LargestUnsigned_KeptExactly) {
  const auto spec = ParseRunSpec(With("/train/seed", UINT64_MAX));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train.seed, UINT64_MAX);
}

TEST(RunSpec_ToJson, ParsedAgain_SameJson) {
  Json mlp = With("/model", "mlp");
  mlp["data"] = {{"idx", {{"images", "i"}, {"labels", "l"}}}};
  mlp["train"]["optimizer"] = {{"sgd", {{"lr", 0.1}, {"momentum", 0.9}}}};
  mlp["stages"] = {1, 2};
  mlp["schedule"] = "gpipe";
  Json towers = mlp;
  towers["model"] = {{"two_tower", {{"stem", 2}, {"width", 8}}}};
  towers["stages"] = {2, 2, 2, 1};
  Json resnet = mlp;
  resnet["model"] = {{"resnet34", {{"stem", "imagenet"}, {"width", 8}, {"size", 64}}}};
  Json vit = mlp;
  vit["model"] = {{"vit_b16", {{"layers", 4}, {"width", 48}, {"size", 32}, {"heads", 4}, {"patch", 8}}}};
  resnet["stages"] = vit["stages"] = 3;
  vit["data"] = {{"cifar10", {{"path", "x"}}}};
  for (const Json& file : {GptRun(), mlp, towers, resnet, vit}) {
    const auto spec = ParseRunSpec(file);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const Json json = ToJson(*spec);
    const auto again = ParseRunSpec(Json::parse(json.dump()));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(ToJson(*again), json);
    EXPECT_EQ(again->layers_of_stage, spec->layers_of_stage);
    EXPECT_EQ(again->schedule.parameters, spec->schedule.parameters);
    EXPECT_EQ(again->schedule.activations, spec->schedule.activations);
  }
}

TEST(RunSpec_Checkpoint, None_IsKeptAndRefusedBesideWhatGoesByCheckpoints) {
  const Json run = With("/checkpoint", "none");
  const auto spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->checkpoint.none);
  EXPECT_EQ(ToJson(*spec)["checkpoint"], "none");
  EXPECT_FALSE(ParseRunSpec(GptRun())->checkpoint.none);

  ExpectRefused({With("/checkpoint", "never"), "checkpoint", "must be {every: 100, keep: 2}, or none"});
  Json validated = run;
  validated["validate"] = {{"data", {{"text", {{"path", "held_out.txt"}}}}}};
  ExpectRefused({validated, "checkpoint", "`validate` goes by checkpoints"});
  Json replanned = run;
  replanned["replan"] = {{"gain", "5%"}};
  ExpectRefused({replanned, "checkpoint", "`replan` goes by checkpoints"});
}

TEST(RunSpec_Steps, SomeOfThem_AreKeptAndChecked) {
  const auto whole = ParseRunSpec(GptRun());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->first_step(), 0);
  EXPECT_EQ(whole->end_step(), 3);
  EXPECT_FALSE(ToJson(*whole).contains("resume"));
  EXPECT_FALSE(ToJson(*whole).contains("until"));

  Json some = With("/until", 2);
  some["resume"] = {{"checkpoint", "/out/checkpoint"}, {"step", 1}};
  const auto spec = ParseRunSpec(some);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->first_step(), 1);
  EXPECT_EQ(spec->end_step(), 2);
  EXPECT_EQ(spec->steps_to_make(), 1);
  EXPECT_EQ(ToJson(*ParseRunSpec(ToJson(*spec))), ToJson(*spec));
  EXPECT_EQ(ToJson(*spec)["resume"], some["resume"]);

  ExpectRefused({With("/until", 4), "until", "the run has 3 steps"});
  ExpectRefused({With("/until", 0), "until", "from 1 to"});
  some["resume"]["step"] = 2;
  ExpectRefused({some, "resume", "of step 2, and the run ends at step 2: nothing is left"});
  ExpectRefused({With("/resume", {{"step", 1}}), "resume.checkpoint", "is missing"});
  ExpectRefused({With("/resume", {{"checkpoint", "c"}}), "resume.step", "is missing"});
  ExpectRefused({With("/resume", {{"checkpoint", "c"}, {"step", 0}}), "resume.step", "from 1 to"});
}

TEST(RunSpec_TwoTower, StagesThatCannotBe_AreRefusedWithTheLayers) {
  Json run = With("/model", {{"two_tower", {{"stem", 1}, {"layers", 2}}}});
  run["data"] = {{"idx", {{"images", "i"}, {"labels", "l"}}}};
  run["stages"] = {2, 4};
  ExpectRefused({run, "stages", "right0 of a later stage reads stem0 in its middle"});
  run["stages"] = 7;
  ExpectRefused({run, "stages", "(stem0, left0 to left1, right0 to right1, head); use at most 6"});
  run["model"] = {{"two_tower", {{"inputs", 49}}}};
  ExpectRefused({run, "model.two_tower.inputs", "49 cannot be halved"});
}

Json ImageRun(const Json& model) {
  Json run = With("/model", model);
  run["data"] = {{"idx", {{"images", "i"}, {"labels", "l"}}}};
  return run;
}

TEST(RunSpec_ImageModels, NamesAlone_TakeDefaults) {
  const auto resnet = ParseRunSpec(ImageRun("resnet50"));
  ASSERT_TRUE(resnet.ok()) << resnet.status();
  EXPECT_EQ(std::get<ResNetSpec>(resnet->model).depth, 50);
  EXPECT_EQ(std::get<ResNetSpec>(resnet->model).stem, ResNetSpec::Stem::kCifar);
  EXPECT_EQ(ImageInputsOf(resnet->model).features, 3 * 32 * 32);
  const auto vit = ParseRunSpec(ImageRun("vit_b16"));
  ASSERT_TRUE(vit.ok()) << vit.status();
  EXPECT_EQ(std::get<VitSpec>(vit->model).patches(), 196);
  EXPECT_EQ(ImageInputsOf(vit->model).classes, 1000);
}

TEST(RunSpec_ImageModels, PartsThatDoNotFit_AreRefused) {
  ExpectRefused({With("/model", "resnet18"), "data", "the model resnet18 learns from labelled images"});
  ExpectRefused(
      {ImageRun({{"resnet18", {{"stem", "imgnet"}}}}), "model.resnet18.stem", "did you mean \"imagenet\"?"});
  ExpectRefused({ImageRun({{"resnet18", {{"depth", 20}}}}), "model.resnet18.depth", "unknown key"});
  ExpectRefused({ImageRun({{"vit_b16", {{"patch", 15}}}}), "model.vit_b16.patch",
                 "15 does not divide the image's size 224"});
  ExpectRefused({ImageRun({{"vit_b16", {{"heads", 7}}}}), "model.vit_b16.width", "not divisible by heads 7"});
  ExpectRefused({ImageRun("resnet19"), "model", "did you mean \"resnet18\"?"});
  Json run = ImageRun({{"resnet18", {{"size", 8}}}});
  EXPECT_TRUE(ParseRunSpec(run).ok());
  run["train"]["microbatches"] = run["train"]["batch"];
  ExpectRefused({run, "train.batch", "the last batch norms of resnet18"});
  run["model"]["resnet18"]["size"] = 16;
  EXPECT_TRUE(ParseRunSpec(run).ok());
}

TEST(RunSpec_UnknownKey, AnySection_NamesNearestValidKey) {
  ExpectRefused({With("/stagse", 4), "stagse", "did you mean \"stages\"?"});
  ExpectRefused({With("/train/microbatch", 4), "train.microbatch", "did you mean \"microbatches\"?"});
  ExpectRefused({With("/model/gpt/layer", 4), "model.gpt.layer", "did you mean \"layers\"?"});
  ExpectRefused({With("/model", {{"gtp", Json::object()}}), "model.gtp", "did you mean \"gpt\"?"});
  ExpectRefused({With("/data/text/file", "a"), "data.text.file", "unknown key \"file\"; valid here: "});
  ExpectRefused({With("/train/optimizer", "adam"), "train.optimizer", "did you mean \"adamw\"?"});
  ExpectRefused(
      {With("/train/optimizer/adamw/beta3", 1), "train.optimizer.adamw.beta3", "did you mean \"beta1\"?"});
  ExpectRefused({With("/schedule/rul", "sync"), "schedule.rul", "did you mean \"rule\"?"});
}

TEST(RunSpec_Schedule, RuleInItsPlace_SaysHowToWriteBoth) {
  const std::string both = "cdp_v2 is a rule, not a schedule; write, for example, {ddp: {}, rule: cdp_v2}";
  ExpectRefused({With("/schedule", "cdp_v2"), "schedule", both});
  ExpectRefused({With("/schedule", {{"cdp_v2", Json::object()}}), "schedule", both});
}

TEST(RunSpec_MissingKey, AnySection_NamesItWithExample) {
  ExpectRefused({Without("", "model"), "model", "is missing"});
  ExpectRefused({Without("", "data"), "data", "is missing"});
  ExpectRefused({Without("", "train"), "train", "is missing"});
  ExpectRefused({Without("", "stages"), "stages", "is missing"});
  ExpectRefused({Without("", "schedule"), "schedule", "is missing"});
  ExpectRefused({Without("train", "steps"), "train.steps", "steps: 200"});
  ExpectRefused({Without("train", "batch"), "train.batch", "is missing"});
  ExpectRefused({With("/data", "text"), "data.text.path", "is missing"});
  ExpectRefused({With("/data", "cifar10"), "data.cifar10.path", "is missing"});
  ExpectRefused({With("/data", {{"idx", {{"images", "i"}}}}), "data.idx.labels", "is missing"});
  ExpectRefused({Json(), "model", "is missing"});
}

TEST(RunSpec_WrongType, AnyValue_SaysWhatIsAllowed) {
  ExpectRefused({Json::array(), "", "must be a section"});
  ExpectRefused({With("/name", 5), "name", "in quotes it is text: \"5\""});
  ExpectRefused({With("/name", "../x"), "name", "begin with a letter or digit"});
  ExpectRefused({With("/name", "a/b"), "name", "letters, digits"});
  ExpectRefused({With("/model", 3), "model", "must name a model"});
  ExpectRefused({With("/model", Json::object()), "model", "names no model"});
  ExpectRefused({With("/model/mlp", Json::object()), "model.mlp", "names both gpt and mlp"});
  ExpectRefused({With("/model/gpt", "big"), "model.gpt", "must be a section"});
  ExpectRefused({With("/train", 3), "train", "must be a section"});
  ExpectRefused({With("/train/steps", "many"), "train.steps", "must be a whole number from 1"});
  ExpectRefused({With("/train/steps", 2.5), "train.steps", "not 2.5"});
  ExpectRefused({With("/train/steps", true), "train.steps", "not true"});
  ExpectRefused({With("/data/text/path", Json::array({1})), "data.text.path", "must be text, not a list"});
  ExpectRefused({With("/stages", "four"), "stages", "not text"});
  ExpectRefused({With("/schedule", 5), "schedule", "must name a schedule"});
  ExpectRefused({With("/schedule", 5), "schedule", ", auto, not a whole number"});
  ExpectRefused({With("/schedule/lpp", {2, 4}), "schedule.lpp", "must be a section"});
  ExpectRefused({With("/schedule/lpp/groups", Json::array()), "schedule.lpp.groups", "must be a number"});
}

TEST(RunSpec_Range, OutsideIt_SaysBounds) {
  ExpectRefused({With("/train/steps", 0), "train.steps", "from 1 to"});
  ExpectRefused({With("/train/batch", -16), "train.batch", "from 1 to 1048576, not -16"});
  ExpectRefused({With("/train/seed", -1), "train.seed", "from 0 to 18446744073709551615"});
  ExpectRefused({With("/train/batch", uint64_t{1} << 63), "train.batch", "from 1 to"});
  ExpectRefused({With("/model/gpt/layers", 100000), "model.gpt.layers", "from 1 to 1000"});
  ExpectRefused({With("/model/gpt/dropout", 1.0), "model.gpt.dropout", "to below 1"});
  ExpectRefused({With("/model/gpt/vocabulary", 128), "model.gpt.vocabulary", "from 256"});
  ExpectRefused({With("/train/clip_norm", -1), "train.clip_norm", "from 0.0"});
  ExpectRefused({With("/train/clip_norm", "1"), "train.clip_norm", "must be a number"});
  ExpectRefused({With("/train/optimizer/adamw/lr", -0.1), "train.optimizer.adamw.lr", "from 0.0"});
}

TEST(RunSpec_Fit, PartsThatDoNotFit_NamesBoth) {
  ExpectRefused(
      {With("/train/batch", 15), "train.batch", "15 samples cannot be cut into 4 equal micro-batches"});
  ExpectRefused({With("/model/gpt/heads", 3), "model.gpt.width", "32 is not divisible by heads 3"});
  ExpectRefused({With("/stages", 99), "stages",
                 "stages: 99 is more than the 6 layers of the model (embedding, block0 to block3, head); use "
                 "at most 6"});
  ExpectRefused({With("/stages", 0), "stages", "from 1"});
  ExpectRefused({With("/stages", {2, 2}), "stages",
                 "[2, 2] places 4 of the 6 layers of the model (embedding, block0 to block3"});
  ExpectRefused({With("/stages", {3, 0, 3}), "stages[1]", "layers of stage 1"});
  ExpectRefused({With("/stages", Json::array()), "stages", "must sum to 6"});
  ExpectRefused({With("/model", "mlp"), "data", "the model mlp learns from labelled images"});
  ExpectRefused({With("/data", {{"idx", {{"images", "i"}, {"labels", "l"}}}}), "data",
                 "the model gpt learns from text"});
  ExpectRefused({With("/data/order", "shufled"), "data.order", "did you mean \"shuffled\"?"});
  ExpectRefused({With("/data/augment", {{"crop", 4}}), "data.augment", "changes images"});
  ExpectRefused({With("/train/non_finite", "skp"), "train.non_finite", "did you mean \"skip\"?"});
  ExpectRefused({With("/train/non_finite", true), "train.non_finite", "must be text"});
}

Json MlpRun() {
  Json run = With("/model", "mlp");
  run["data"] = {{"idx", {{"images", "/i"}, {"labels", "/l"}}}};
  run["stages"] = 3;
  run["schedule"] = "1f1b";
  return run;
}

TEST(RunSpec_Data, OrderAndAugmentation_AreReadAndWritten) {
  Json run = MlpRun();
  run["data"]["order"] = "shuffled";
  run["data"]["augment"] = {{"crop", 4}, {"flip", true}};
  const auto spec = ParseRunSpec(run);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data.order, "shuffled");
  EXPECT_EQ(spec->data.augment.crop, 4);
  EXPECT_TRUE(spec->data.augment.flip);
  EXPECT_EQ(ToJson(*spec)["data"],
            run["data"].patch(Json::array({{{"op", "add"}, {"path", "/idx/resize"}, {"value", false}}})));
  EXPECT_EQ(ToJson(*ParseRunSpec(ToJson(*spec))), ToJson(*spec));
  run["data"]["augment"]["crop"] = -1;
  ExpectRefused({run, "data.augment.crop", "from 0 to 1024"});
  run["data"]["augment"] = {{"flop", true}};
  ExpectRefused({run, "data.augment.flop", "did you mean \"flip\"?"});
}

TEST(RunSpec_Train, NonFinite_StopsUnlessTheFileSaysOtherwise) {
  EXPECT_EQ(ParseRunSpec(GptRun())->train.non_finite, NonFinite::kStop);
  for (const auto& [name, choice] : std::vector<std::pair<std::string, NonFinite>>{
           {"stop", NonFinite::kStop}, {"skip", NonFinite::kSkip}, {"continue", NonFinite::kContinue}}) {
    const auto spec = ParseRunSpec(With("/train/non_finite", name));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->train.non_finite, choice);
    EXPECT_EQ(ToJson(*spec)["train"]["non_finite"], name);
    EXPECT_EQ(ScheduleOf(*spec)->terms.takes_norm, choice == NonFinite::kSkip)
        << "the norm decides for all stages";
  }
}

TEST(RunSpec_Train, SkipWithAStateThatMigrates_IsRefusedAtItsKey) {
  Json run = MlpRun();
  run["train"]["batch"] = 15;
  run["train"]["microbatches"] = 3;
  run["train"]["non_finite"] = "skip";
  run["schedule"] = {{"fsdp", {{"residency", "migrating"}}}, {"rule", "cdp_v2"}};
  const absl::Status refused = ScheduleOf(*ParseRunSpec(run)).status();
  EXPECT_EQ(std::string(*refused.GetPayload(kPathPayload)), "train.non_finite") << refused;
  run["train"]["non_finite"] = "stop";
  EXPECT_TRUE(ScheduleOf(*ParseRunSpec(run)).ok());
}

TEST(RunSpec_Memory, NumberOrTextWithUnit_IsBytes) {
  for (const auto& [value, bytes] : std::vector<std::pair<Json, int64_t>>{
           {2000, 2000}, {"2000", 2000}, {"1.5GiB", 1610612736}, {"3MB", 3000000}}) {
    const auto spec = ParseRunSpec(With("/memory", value));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->memory, bytes);
    EXPECT_EQ(ParseRunSpec(ToJson(*spec))->memory, bytes);
  }
  for (const Json& memory : {Json("2XB"), Json("much"), Json(0), Json(-5), Json::array(), Json(true)}) {
    ExpectRefused({With("/memory", memory), "memory", "must be a number of bytes"});
  }
}

TEST(RunSpec_Precision, NamesAndSections_AreTheSame) {
  const auto whole = ParseRunSpec(GptRun());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->precision, Precision::kFloat32);
  EXPECT_EQ(whole->kernels, Kernels::kDeterministic);
  const std::vector<std::pair<Json, Precision>> written = {
      {"float32", Precision::kFloat32},
      {"fp32", Precision::kFloat32},
      {"tf32", Precision::kTf32},
      {"bf16", Precision::kBFloat16},
      {{{"compute", "bf16"}, {"weights", "fp32"}}, Precision::kBFloat16},
      {{{"compute", "tf32"}, {"weights", "float32"}}, Precision::kTf32},
      {{{"compute", "bf16"}}, Precision::kBFloat16},
      {Json::object(), Precision::kFloat32}};
  for (const auto& [value, precision] : written) {
    const auto spec = ParseRunSpec(With("/precision", value));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->precision, precision) << value;
    EXPECT_EQ(ParseRunSpec(ToJson(*spec))->precision, precision);
  }
  const auto any = ParseRunSpec(With("/kernels", "any"));
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_EQ(ParseRunSpec(ToJson(*any))->kernels, Kernels::kAny);
}

TEST(RunSpec_Precision, WhatIsNone_IsRefusedInASentence) {
  ExpectRefused({With("/precision", "bf61"), "precision", "did you mean \"bf16\"?"});
  ExpectRefused({With("/precision", 16), "precision", "must be float32, tf32 or bf16"});
  ExpectRefused({With("/precision", {{"compute", "bf1"}}), "precision.compute", "did you mean \"bf16\"?"});
  ExpectRefused({With("/precision", {{"weights", "bf16"}}), "precision.weights",
                 "must be float32, not bf16: weights, the sums of gradients"});
  ExpectRefused({With("/precision", {{"sums", "bf16"}}), "precision.sums", "unknown key"});
  ExpectRefused({With("/kernels", "deterministc"), "kernels", "did you mean \"deterministic\"?"});
  ExpectRefused({With("/kernels", true), "kernels", "must be deterministic or any"});
}

TEST(RunSpec_Gpt, Presets_HaveThePublishedSizesAndMayBeChanged) {
  const auto read = [](Json gpt) {
    const auto spec = ParseRunSpec(With("/model", {{"gpt", std::move(gpt)}}));
    EXPECT_TRUE(spec.ok()) << spec.status();
    return std::get<GptSpec>(spec->model);
  };
  const GptSpec xl = read({{"preset", "gpt2_xl"}});
  EXPECT_EQ(xl.layers, 48);
  EXPECT_EQ(xl.width, 1600);
  EXPECT_EQ(xl.heads, 25);
  EXPECT_EQ(xl.context, 1024);
  EXPECT_EQ(xl.vocabulary, 50257);
  const GptSpec padded = read({{"preset", "gpt2"}, {"vocabulary", 50304}, {"context", 512}});
  EXPECT_EQ(padded.layers, 12);
  EXPECT_EQ(padded.vocabulary, 50304);
  EXPECT_EQ(padded.context, 512);
  ExpectRefused({With("/model", {{"gpt", {{"preset", "gpt2_lage"}}}}), "model.gpt.preset",
                 "did you mean \"gpt2_large\"?"});
}

TEST(RunSpec_Gpt, GeluByTanh_IsReadAndWritten) {
  const auto spec = ParseRunSpec(With("/model", {{"gpt", {{"gelu", "tanh"}}}}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(std::get<GptSpec>(ParseRunSpec(ToJson(*spec))->model).tanh_gelu);
  ExpectRefused({With("/model", {{"gpt", {{"gelu", "tan"}}}}), "model.gpt.gelu", "did you mean \"tanh\"?"});
}

TEST(RunSpec_Gpt, TiedEmbedding_IsALayerOfItsOwn) {
  const auto spec = ParseRunSpec(With("/model", {{"gpt", {{"preset", "gpt2"}, {"tied", true}}}}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(std::get<GptSpec>(ParseRunSpec(ToJson(*spec))->model).tied);
  const std::vector<LayerCount> layers = CountLayers(spec->model);
  EXPECT_EQ(layers.size(), 15u);
  EXPECT_TRUE(layers[0].reads_data && layers[0].inputs.empty() && !layers[0].output.by_sample);
  EXPECT_TRUE(layers[1].reads_data);
  EXPECT_EQ(layers[1].inputs, std::vector<int>({0}));
  EXPECT_EQ(layers.back().inputs, std::vector<int>({0, 13}));
  int64_t parameters = 0;
  for (const LayerCount& layer : layers) parameters += layer.parameters;
  EXPECT_EQ(parameters, 124439808);  // as published
}

// A stage of its own, but no rank: written, it counts with the first stage.
TEST(RunSpec_Stages, TiedParameter_IsAStageBesideTheFirstOne) {
  Json file = With("/model", {{"gpt", {{"layers", 4}, {"tied", true}}}});
  file["stages"] = 3;
  file["schedule"] = "1f1b";
  const auto spec = ParseRunSpec(file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->stages(), 4);
  EXPECT_EQ(spec->placed_stages(), 3);
  EXPECT_EQ(spec->layers_of_stage[0], 1);
  const Json written = ToJson(*spec)["stages"];
  ASSERT_EQ(written.size(), 3u);
  EXPECT_EQ(written[0], 1 + spec->layers_of_stage[1]);
  const auto again = ParseRunSpec(ToJson(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->layers_of_stage, spec->layers_of_stage);
  EXPECT_EQ(again->tied_stages, 1);
  const auto schedule = ScheduleOf(*spec);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->scheme.ranks, 3);
}

TEST(RunSpec_Stages, TiedParameterWithAStageOfItsOwn_HasARank) {
  Json file = With("/model", {{"gpt", {{"layers", 4}, {"tied", true}}}});
  file["stages"] = {1, 3, 3};
  file["schedule"] = "1f1b";
  const auto spec = ParseRunSpec(file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->tied_stages, 0);
  EXPECT_EQ(ScheduleOf(*spec)->scheme.ranks, 3);
  EXPECT_EQ(ToJson(*spec)["stages"], Json({1, 3, 3}));
  file["stages"] = 7;
  ExpectRefused({file, "stages", "use at most 6"});
}

TEST(RunSpec_Stages, ActivationsOfATiedParameter_AreThoseOfTheFirstStage) {
  Json file = With("/model", {{"gpt", {{"layers", 4}, {"tied", true}}}});
  file["stages"] = 3;
  file["schedule"] = {{"1f1b", nullptr}, {"activations", {"recompute", "retain", "offload"}}};
  const auto spec = ParseRunSpec(file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(ActivationsOf(*spec, 0), ActivationPolicy::kRecompute);
  EXPECT_EQ(ActivationsOf(*spec, 1), ActivationPolicy::kRecompute);
  EXPECT_EQ(ActivationsOf(*spec, 3), ActivationPolicy::kOffload);
}

TEST(RunSpec_Optimizer, PatternsWithoutDecay_AreKeptAndFitNames) {
  const Json patterns = {"*.bias", "block0.norm1.*"};
  for (const char* optimizer : {"adamw", "sgd"}) {
    const auto spec = ParseRunSpec(With("/train/optimizer", {{optimizer, {{"no_decay", patterns}}}}));
    ASSERT_TRUE(spec.ok()) << spec.status();
    const Json json = ToJson(*spec);
    EXPECT_EQ(json["train"]["optimizer"][optimizer]["no_decay"], patterns);
    EXPECT_EQ(ToJson(*ParseRunSpec(json)), json);
  }
  const auto one = ParseRunSpec(With("/train/optimizer", {{"adamw", {{"no_decay", "*.bias"}}}}));
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(std::get<AdamWSpec>(one->train.optimizer).no_decay.size(), 1u);
  ExpectRefused({With("/train/optimizer", {{"adamw", {{"no_decay", {"*.bias", "*.biass"}}}}}),
                 "train.optimizer.adamw.no_decay", "no parameter has a name like *.biass"});
  ExpectRefused({With("/train/optimizer", {{"adamw", {{"no_decay", 3}}}}), "train.optimizer.adamw.no_decay",
                 "list of patterns"});
}

TEST(RunSpec_Data, KindsOfTokensAndSizes_AreKept) {
  for (const char* tokens : {"bytes", "uint32", "llm.c", "megatron"}) {
    const auto spec = ParseRunSpec(With("/data/text/tokens", tokens));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(ToJson(*ParseRunSpec(ToJson(*spec)))["data"]["text"]["tokens"], tokens);
  }
  const auto text = ParseRunSpec(With("/data/text/tokens", "uint16"));
  ASSERT_TRUE(text.ok()) << text.status();
  const auto again = ParseRunSpec(ToJson(*text));
  EXPECT_EQ(std::get<TextData>(again->data.source).tokens, TextData::Tokens::kUInt16);
  ExpectRefused({With("/data/text/tokens", "int16"), "data.text.tokens", "did you mean \"uint16\"?"});
  Json run = ImageRun("resnet50");
  run["data"]["idx"]["resize"] = true;
  EXPECT_TRUE(std::get<IdxData>(ParseRunSpec(ToJson(*ParseRunSpec(run)))->data.source).resize);
  run["data"]["idx"]["resize"] = 224;
  ExpectRefused({run, "data.idx.resize", "must be true or false, not 224"});
}

TEST(RunMemory_Counts, PolicyOfAStageAndPrecision_ShowInItsBytes) {
  const auto counts = [](const Json& file) {
    const auto spec = ParseRunSpec(file);
    EXPECT_TRUE(spec.ok()) << spec.status();
    std::vector<StageMemory> stages;
    stages.reserve(spec->stages());
    for (int s = 0; s < spec->stages(); ++s) stages.push_back(CountStage(*spec, s));
    return stages;
  };
  const auto retained = counts(GptRun());
  const auto recomputed = counts(With("/schedule/activations", "recompute"));
  const auto mixed = counts(With("/schedule/activations", {"retain", "recompute", "retain", "recompute"}));
  for (int s = 0; s < 4; ++s) {
    EXPECT_EQ(mixed[s].activation_bytes, (s % 2 == 0 ? retained : recomputed)[s].activation_bytes) << s;
    EXPECT_EQ(mixed[s].work, (s % 2 == 0 ? retained : recomputed)[s].work) << s;
  }
  EXPECT_LT(recomputed[1].activation_bytes, retained[1].activation_bytes);
  const auto narrow = counts(With("/precision", "bf16"));
  for (int s = 0; s < 4; ++s) {
    EXPECT_EQ(narrow[s].parameters, retained[s].parameters);
    EXPECT_EQ(narrow[s].narrowed, retained[s].parameters / 2);
    EXPECT_EQ(retained[s].narrowed, 0);
    EXPECT_LT(narrow[s].activation_bytes, retained[s].activation_bytes);
  }
  EXPECT_LT(narrow[1].activation_bytes, 0.6 * static_cast<double>(retained[1].activation_bytes));
}

// Eight micro-batches on two ranks: the gradients of four may wait, and a budget has room for those of one
// micro-batch, and makes the others wait.
TEST(RunMemory_Counts, GradientsThatLeaveTheirRank_HaveTheRoomOfTheirForward) {
  Json text = With("/schedule", {{"ddp", {{"ranks", "2"}}}});
  text["train"]["microbatches"] = 8;
  const RunSpec run = *ParseRunSpec(text);
  const RunMemory counted = CountRun(run, *ScheduleOf(run));
  int64_t weights = 0, room = 0;
  for (int s = 0; s < run.stages(); ++s) {
    EXPECT_EQ(counted.forwards.gradient_bytes[s], CountStage(run, s).parameters);
    weights += CountStage(run, s).parameters;
    room +=
        std::max(counted.forwards.BytesOf(s) + counted.gpu_activations[s], counted.forwards.GradientOf(s));
  }
  const RankMemory& rank = counted.ranks[0];
  EXPECT_EQ(rank.handed_out, 4 * weights);
  EXPECT_EQ(rank.BesideActivations(0, 7), static_cast<double>(rank.beside_activations()));
  RunSpec within = run;
  within.memory = rank.beside_forwards() + room;
  EXPECT_TRUE(CheckedScheduleOf(within).ok()) << CheckedScheduleOf(within).status();
  EXPECT_EQ(rank.BesideActivations(within.memory, 7), static_cast<double>(within.memory - 7));
  --within.memory;
  EXPECT_THAT(std::string(CheckedScheduleOf(within).status().message()),
              ::testing::HasSubstr("micro-batch 0 alone leaves"));
}

// The device is known only when the run has its processes.
TEST(RunMemory_Counts, BytesThatAGpuKeepsInAddition_HaveRoomWithinABudget) {
  RunSpec run = *ParseRunSpec(With("/schedule", "1f1b"));
  const StageMemory last = CountStage(run, run.stages() - 1);
  EXPECT_GE(last.gpu_activations, 4 * run.microbatch_samples()) << "a sum of each row of scores";
  EXPECT_EQ(CountStage(run, 0).gpu_activations, 0);
  EXPECT_EQ(CountRun(run, *ScheduleOf(run)).forwards.activation_bytes.back(), last.activation_bytes);
  run.memory = int64_t{1} << 30;
  const absl::StatusOr<RunSchedule> within = CheckedScheduleOf(run);
  ASSERT_TRUE(within.ok()) << within.status();
  EXPECT_EQ(within->terms.memory->activation_bytes.back(), last.activation_bytes + last.gpu_activations);
  run.schedule.activations = "recompute";
  EXPECT_EQ(CountStage(run, run.stages() - 1).gpu_activations, kTensorAlignment) << "the loss";
  EXPECT_EQ(CountStage(run, 0).gpu_activations, 0);
}

// The run reduces by messages or by collectives: that is known only when it has its processes.
TEST(RunMemory_Counts, FastReduction_TakesWhatTheLargerOfBothWaysNeeds) {
  const auto totals = [](const RunSpec& run, bool collective) {
    RunSchedule schedule = *ScheduleOf(run);
    if (collective) schedule.terms.reduction = ReductionMode::kFast;
    std::vector<int64_t> needs;
    for (const RankMemory& rank : CountRun(run, schedule).ranks) needs.push_back(rank.beside_activations());
    return needs;
  };
  for (const Json& schedule : std::vector<Json>{{{"ddp", nullptr}}, {{"fsdp", {{"shard", "width"}}}}}) {
    SCOPED_TRACE(schedule.dump());
    RunSpec run = *ParseRunSpec(With("/schedule", schedule));
    const std::vector<int64_t> ordered = totals(run, false), gathered = totals(run, true);
    run.schedule.reduction = "fast";
    const std::vector<int64_t> fast = totals(run, false);
    const std::vector<RankMemory> ranks = CountRun(run, *ScheduleOf(run)).ranks;
    ASSERT_EQ(fast.size(), ordered.size());
    for (size_t r = 0; r < fast.size(); ++r) {
      EXPECT_EQ(fast[r], std::max(ordered[r], gathered[r]));
      EXPECT_GE(ranks[r].beside_forwards(), gathered[r]) << "sums by collectives are in no forward's room";
    }
    EXPECT_NE(ordered, gathered);
  }
}

}  // namespace
}  // namespace weft::run_spec_test
