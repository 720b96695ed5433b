#include "run/named_paths.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::named_paths_test {
namespace {

using ::testing::ElementsAre;

// Returns the paths as "key=path".
std::vector<std::string> Texts(const RunSpec& run) {
  std::vector<std::string> texts;
  for (const NamedPath& named : NamedPaths(run)) texts.push_back(named.key + "=" + named.path);
  return texts;
}

TEST(NamedPaths, EverySourceOfData_HasItsKeys) {
  RunSpec run;
  run.data.source = TextData{"/a.txt"};
  EXPECT_THAT(Texts(run), ElementsAre("data.text.path=/a.txt"));
  run.data.source = IdxData{"/images", "/labels"};
  EXPECT_THAT(Texts(run), ElementsAre("data.idx.images=/images", "data.idx.labels=/labels"));
  run.data.source = Cifar10Data{"/cifar"};
  EXPECT_THAT(Texts(run), ElementsAre("data.cifar10.path=/cifar"));
  run.data.source = ArraysData{{{"ids", {"/0.npy", "/1.npy"}}, {"labels", {"/labels.npy"}}}};
  EXPECT_THAT(Texts(run), ElementsAre("data.arrays.ids=/0.npy", "data.arrays.ids=/1.npy",
                                      "data.arrays.labels=/labels.npy"));
}

TEST(NamedPaths, EverythingThatARunReads_IsThere) {
  RunSpec run;
  run.data.source = TextData{"/a.txt"};
  run.validate.data.source = TextData{"/held_out.txt"};
  run.weights = "/weights";
  run.resume.checkpoint = "/out/checkpoint-3";
  ExportedSpec exported;
  exported.folder = "/model";
  exported.plugins = {{"/rope.so", ""}, {"/rope.py", ""}};
  run.model = exported;
  EXPECT_THAT(Texts(run), ElementsAre("data.text.path=/a.txt", "weights=/weights", "model.exported=/model",
                                      "plugins=/rope.so", "plugins=/rope.py", "resume=/out/checkpoint-3"))
      << "held-out data are not read where there is no validation";
  run.validate.every = 2;
  EXPECT_EQ(Texts(run)[1], "validate.data.text.path=/held_out.txt");
}

}  // namespace
}  // namespace weft::named_paths_test
