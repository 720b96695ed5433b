// Makes small runs with their data, for tests of compute: every built-in model, at sizes that are odd in
// places, and exported models.
#ifndef WEFT_TESTS_CONFORMANCE_SMALL_RUNS_H_
#define WEFT_TESTS_CONFORMANCE_SMALL_RUNS_H_

#include <string>

#include "run/run_spec.h"
#include "tests/test_folder.h"

namespace weft::testing {

void WriteFile(const std::string& path, const std::string& content);
std::string ReadFile(const std::string& path);

// Makes text that can be learned: words in a fixed grammar, so that the loss falls quickly.
std::string SmallText(int bytes);

// Makes a small run over a text that is written into `folder`. `stages` cuts the chain near-equally by
// layers.
RunSpec SmallGptRun(const std::string& folder, int stages);
// Makes a run with images and labels in IDX files.
RunSpec SmallMlpRun(const std::string& folder, int stages);
// Makes a run with the same images, of 8 x 8, for two towers under one head; without a stem each reads one
// half of an image.
RunSpec SmallTwoTowerRun(const std::string& folder, int stages, int stem);
// Makes a run with the same images under a residual network with few channels; sizes are odd in places. A
// depth of 50 comes with the stem for ImageNet.
RunSpec SmallResNetRun(const std::string& folder, int stages, int depth);
// Makes a run with the same images under a vision transformer.
RunSpec SmallVitRun(const std::string& folder, int stages);
// Makes a run of an exported model of tests/exported/models, in float32, with its data, in so many stages
// beside those of tied parameters.
RunSpec SmallExportedRun(const std::string& model, int stages);
OptimizerSpec Sgd();
OptimizerSpec AdamW();

// Makes a small built-in model, of any kind but two_tower, so large that the alignment of tensors hardly
// counts.
void Widen(ModelSpec* model);

}  // namespace weft::testing

#endif  // WEFT_TESTS_CONFORMANCE_SMALL_RUNS_H_
