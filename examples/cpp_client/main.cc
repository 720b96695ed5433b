// Submits a run file, or watches a run that is there, and prints its progress until it ends:
//
//   submit_run RUN.yaml|NUMBER [COORDINATOR [TLS_FOLDER]]
//
// Exits with 0 if the run finishes, and with 1 if it does not.
#include <cstdlib>
#include <iostream>
#include <string>

#include "weft/client.h"

namespace {

int Fail(const absl::Status& status) {
  std::cerr << "submit_run: " << status << "\n";
  return 1;
}

// Returns the number of the run that the text names, after it is submitted if the text is the path of a file.
absl::StatusOr<uint64_t> Submitted(weft::Client& client, const std::string& text) {
  if (text.find_first_not_of("0123456789") == std::string::npos)
    return std::strtoull(text.c_str(), nullptr, 10);
  absl::StatusOr<std::string> run_file = weft::Client::ReadRunFile(text);
  if (!run_file.ok()) return run_file.status();
  weft::Client::Submission submission{*run_file};
  submission.file = text;
  return client.Submit(submission);
}

bool Print(const weft::Client::Run& run) {
  std::cout << weft::Client::NameOf(run.state) << ", step " << run.steps_done << " of " << run.steps;
  if (run.loss.has_value()) std::cout << ", loss " << *run.loss;
  if (!run.reason.empty()) std::cout << ": " << run.reason;
  std::cout << std::endl;
  return true;  // goes on watching
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2)
    return Fail(absl::InvalidArgumentError("usage: submit_run RUN.yaml|NUMBER [COORDINATOR [TLS_FOLDER]]"));
  weft::Client::Options options;
  if (argc > 2) options.coordinator = argv[2];
  if (argc > 3) options.tls = argv[3];
  absl::StatusOr<weft::Client> client = weft::Client::Make(options);
  if (!client.ok()) return Fail(client.status());

  absl::StatusOr<uint64_t> number = Submitted(*client, argv[1]);
  if (!number.ok()) return Fail(number.status());
  absl::StatusOr<weft::Client::Run> run = client->Watch(*number, Print);
  if (!run.ok()) return Fail(run.status());
  std::cout << "run " << run->id << " is " << weft::Client::NameOf(run->state) << "; its results are in "
            << run->output << std::endl;
  return run->state == weft::Client::State::kFinished ? 0 : 1;
}
