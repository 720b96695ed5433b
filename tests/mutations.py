#!/usr/bin/env python3
"""Weakens one guard of Weft at a time, and shows that a test notices.

    mutations.py [BUILD_DIR] [--only NAME ..] [--check]

Copies the tree to BUILD_DIR/mutations (build/release by default), builds there what the named tests need, and runs them
unchanged: they must pass. Then each mutation changes one text of the source, builds its test again, and runs it: the test
must fail. Prints a table; exits 1 if a mutation was not noticed. The first run builds the libraries below the tests, and
the copy keeps them for the next one. With --check it only looks whether each text is still in the source, once.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass

SOURCE = pathlib.Path(__file__).resolve().parent.parent


@dataclass
class Mutation:
    name: str    # the guard that it weakens
    file: str
    text: str    # occurs once in the file
    weaker: str  # what stands there instead
    test: str    # the program that notices, also the build's target
    filter: str  # of its cases


MUTATIONS = [
    Mutation("the model that a plan is for", "client/files/schedule_file.cc",
             "if (planned == own) return absl::OkStatus();", "if (planned > 0 && own > 0) return absl::OkStatus();",
             "planning_test", "PlanInRunFile.PlanForAnotherModel_IsRefused"),
    Mutation("a coordinator that was started again knows each checkpoint", "coordinator/core/run_attempts.cc",
             "  checkpoints_.insert(figures.checkpoints.begin(), figures.checkpoints.end());\n", "",
             "coordinator_core_test", "RestoredCore.NewestCheckpointIsDamaged*"),
    Mutation("the process of the first rank completes checkpoints", "coordinator/core/run_members.h",
             "const RunMember& first() const { return MemberOf(0); }", "const RunMember& first() const { return at(0); }",
             "coordinator_core_test", "MoveTest.FirstRankMoves*"),
    Mutation("what the process of the first rank was asked for", "coordinator/core/run_return.cc",
             "Note(member, &members->at(member) == &members->first(), reattach);", "Note(member, member == 0, reattach);",
             "coordinator_core_test", "RestoredCore.FirstRankHadMoved*"),
    Mutation("speeds that differ by noise", "client/files/measured_network.cc",
             "(1 - kSameSpeed) * speed < speeds[ranks[i - 1]]", "speed < speeds[ranks[i - 1]]",
             "client_files_test", "JoinNearSpeeds*"),
    Mutation("the room of a gradient that has not been taken", "schedules/dispatch/admission.cc",
             "bytes_out_ -= BytesOf(stage) - gradient_bytes_[stage];", "bytes_out_ -= BytesOf(stage);",
             "schedules_test", "Tickets.Gradient*"),
    Mutation("room for a gradient beside the pieces that it is made of", "run/run_memory.cc",
             "if (graph.protocol(s).gradients_leave())", "if (stage.end_work < 0)",
             "process_tests", "*LeastBudgetOfManyRanks*"),
    Mutation("gradients are taken before their job is granted", "worker/core/pending_jobs.cc",
             "      FlagsOf(id) |= kTakes;\n", "",
             "worker_core_test", "TwoProcesses.GradientsOfAStepThatHasBegun*"),
    Mutation("a job that takes gradients ends when it is granted", "worker/core/pending_jobs.cc",
             "const bool ends = MissingOf(id) == 0 && (FlagsOf(id) & kClaimed);", "const bool ends = MissingOf(id) == 0;",
             "worker_core_test", "TwoProcesses.GradientsOfAStepThatHasBegun*"),
    Mutation("gradients of another attempt", "worker/core/worker_core.cc",
             "IsLive(taken.run) && epoch() == taken.epoch", "IsLive(taken.run)",
             "worker_core_test", "TwoProcesses.ForwardWithoutRoomForItsGradient*"),
    Mutation("an update within a budget waits for its readers", "worker/core/worker_run.cc",
             "for (const Job& job : waiting) pending_.AwaitTaking(run_.IdOf(job));", "waiting.clear();",
             "worker_core_test", "*HaveGivenTheVersionBack*"),
    Mutation("a wait for readers within a budget is one for memory", "worker/core/worker_run.cc",
             "  if (pending_.AwaitsTakings(id)) return IdleCause::kMemory;\n", "",
             "worker_core_test", "*HaveGivenTheVersionBack*"),
    Mutation("a tensor is told of when its memory is free", "worker/shell/loop/taken_tensors.cc",
             "    owner.reset();  // first: the note says that the memory is free\n", "",
             "worker_loop_test", "TakenTensors.*"),
    Mutation("an attempt reads the run's files and no others", "worker/shell/data/input_notes.cc",
             "if (noted == found) return absl::OkStatus();", "if (noted.bytes == found.bytes) return absl::OkStatus();",
             "compute_state_test", "InputNotes.*"),
    Mutation("a plug-in's hash", "worker/shell/torch/plugins.cc",
             "if (hash == plugin.sha256) return bytes;", "if (!hash.empty()) return bytes;",
             "plugins_test", "*"),
    Mutation("the worker's permission for a plug-in", "worker/shell/compute/plugin_permission.cc",
             "return Allowed().any || Allowed().hashes.count(sha256) != 0;", "return !sha256.empty();",
             "plugins_test", "*"),
    Mutation("a completion's token, at the coordinator", "coordinator/core/run_members.h",
             "return Has(session, rank) && TokenOf(rank) == token;", "return Has(session, rank);",
             "transcript_golden_test", "*stale_messages_are_fenced*"),
    Mutation("a grant's token, at the worker", "worker/core/worker_run.cc",
             "StateOf(grant.rank).token == grant.token;", "!grant.jobs.empty();",
             "worker_core_test", "*StaleToken*"),
    Mutation("the attempt's own folder, in a checkpoint", "worker/shell/checkpoint/checkpoint_folders.cc",
             'identity_.run_id.substr(0, 8), "-", attempt)', 'identity_.run_id.substr(0, 8))',
             "compute_state_test", "CheckpointFolder.AttemptThatIsOver*"),
    Mutation("an attempt has an epoch of its own", "coordinator/core/run_members.cc",
             "PlaceRanks(member_of_rank, ++numbers->epoch,", "PlaceRanks(member_of_rank, numbers->epoch,",
             "run_simulation_test", "*ProcessesKilled*"),
    Mutation("the epoch of a tensor, at its receiver", "worker/shell/transport/transfer_table.h",
             "return key.run == run_ && key.epoch == epoch_;", "return key.run == run_;",
             "transport_parts_test", "*"),
    Mutation("the epoch is stored before it is used", "coordinator/core/present_attempt.cc",
             "std::max(out.effects.records.epoch, members_.epoch())", "out.effects.records.epoch",
             "coordinator_core_test", "*"),
    Mutation("a commit comes before its acknowledgement", "coordinator/store/store_writer.cc",
             "  while (Take(&taken)) {\n", "  while (Take(&taken)) {\n    for (const auto& early : taken.durable) early();\n",
             "store_test", "StoreWriter*"),
    Mutation("a step's record comes before its effects", "coordinator/core/coordinator_core.cc",
             "  out_.effects.records.steps = out_.effects.steps;\n", "",
             "run_simulation_test", "*CoordinatorKilled*"),
    Mutation("effects wait for their record", "coordinator/shell/server_loop.cc",
             "held_.Hold({written_, [this, shared] { CarryOut(std::move(*shared)); }, size, !ahead});",
             "CarryOut(std::move(*shared));",
             "server_tests", "CoordinatorServerStore*"),
    Mutation("a version of the protocol is in both ranges", "proto/session/protocol_versions.cc",
             "if (highest >= std::max(worker.lowest, coordinator.lowest)) return highest;", "if (highest > 0) return highest;",
             "session_test", "ChooseProtocol*"),
    Mutation("a coordinator without ranges finds its version", "proto/wire/open_codec.cc",
             "out->set_protocol(versions.lowest);", "out->set_protocol(versions.highest);",
             "session_test", "OpenMessage*"),
    Mutation("a method that is not in the table is denied", "proto/session/access.cc",
             'return absl::PermissionDeniedError(absl::StrCat(identity.text(), " may not call ", path.substr(0, 200)));',
             "return absl::OkStatus();", "daemon_tests", "*NotInTheTable*"),
    Mutation("the role of a caller, at the coordinator", "coordinator/shell/access_check.cc",
             "return ToGrpc(CheckAccess(*caller, TextIn(path->second)));", "return grpc::Status::OK;",
             "server_tests", "*EachRoleAndMethod*"),
    Mutation("clients believe a coordinator's certificate alone", "proto/wire/tls_credentials.cc",
             "peer->role != Role::kCoordinator", "peer->name.empty()", "server_tests", "*IsNotBelieved*"),
    Mutation("the coordinator's certificate alone names its host", "client/commands/certs_command.cc",
             "role == Role::kCoordinator ? options.hosts", "EndsOf(role) == CertificateEnds::kBoth ? options.hosts",
             "server_tests", "*ComparesHosts*"),
    Mutation("a coordinator that stops says so to those that watch its health", "coordinator/shell/health_calls.cc",
             "watcher->Tell();", "(void)watcher;", "server_tests", "*ThatStops*"),
    Mutation("a worker trusts workers alone, of those that connect to it", "worker/shell/transport/tls_receiver.cc",
             "if (!(*trusts_)(tls_->peer_uris())) {", "if (fd_ < 0) {", "transport_parts_test", "*ButNoWorker*"),
    Mutation("a worker trusts workers alone, of those that it connects to", "worker/shell/transport/tls_sender.cc",
             "if ((*trusts_)(tls_->peer_uris())) return;", "if (fd_ >= 0) return;", "transport_parts_test", "*ButNoWorker*"),
    Mutation("the length of a frame is checked", "worker/shell/transport/message_frame.h",
             "lengths.header > max_header", "lengths.header > max_header + 8", "transport_parts_test", "*SendsNonsense*"),
    Mutation("a key fits its certificate before it is used", "base/certificates/certificate_folder.cc",
             "X509_check_private_key(chain->front().get(), key.get()) != 1", "chain->empty()",
             "daemon_tests", "*ThatDoNotFit*"),
    Mutation("a write to etcd compares the leader's key", "coordinator/store/etcd_store.cc",
             "client_->ChangeIf(leadership_->token(), changes)", 'client_->ChangeIf({"nobody", 0}, changes)',
             "store_test", "EtcdStores.AFormerLeader*"),
    Mutation("a submission is stored with its figures", "coordinator/store/row_changes.cc",
             "EncodeStored(submission)).joined = true;", "EncodeStored(submission));",
             "coordinator_core_test", "RowChanges.AnyPart*"),
    Mutation("the checksum of a checkpoint's index", "worker/shell/checkpoint/checkpoint_index.cc",
             "if (!TakeOwnChecksum(&json))", "if (!TakeOwnChecksum(&json) && json.empty())",
             "compute_state_test", "Audit.EveryFlippedByte*"),
    Mutation("the checksum of a file, in the index", "worker/shell/checkpoint/checkpoint_index.cc",
             "same_training && checksum == named->second.crc32 &&", "same_training &&",
             "compute_state_test", "CheckpointFolder.FilesOfTwoRuns*"),
    Mutation("a checkpoint waits for every process", "coordinator/core/checkpoints.cc",
             "std::all_of(snapshot->saved.begin(), snapshot->saved.end(),",
             "std::any_of(snapshot->saved.begin(), snapshot->saved.end(),",
             "run_simulation_test", "*Snapshots*"),
    Mutation("a checkpoint is sealed behind its steps", "coordinator/core/run_checkpoints.cc",
             "if (!failure.empty() || step <= reported) Seal(", "if (!failure.empty() || reported >= 0) Seal(",
             "run_simulation_test", "*ProcessesKilled*:*CoordinatorKilled*"),
    Mutation("the tokens of a worker that comes back", "coordinator/core/run_return.cc",
             "return h.rank == lease.rank && h.token == lease.token;", "return h.rank == lease.rank;",
             "coordinator_core_test", "*ProcessWithAnotherToken*"),
    Mutation("a worker keeps what is not settled", "worker/core/unsettled_work.cc",
             "jobs_.begin()->first < settled.ended", "jobs_.begin()->first <= settled.ended",
             "run_simulation_test", "*OnlyCoordinatorKilled*"),
    Mutation("what a worker was granted is not granted again", "worker/core/worker_core.cc",
             "    unsettled_->Granted(grant.rank, grant.jobs.size());\n", "",
             "run_simulation_test", "*OnlyCoordinatorKilled*"),
    Mutation("a request that is made again is answered, not carried out", "worker/core/unsettled_work.cc",
             "return !std::exchange(validating.begun, true);", "return true;",
             "worker_core_test", "UnsettledWork*"),
    Mutation("older copies go when each part is in two processes", "coordinator/core/run_copies.cc",
             "return k.second.size() > 1;", "return !k.second.empty();",
             "run_simulation_test", "*OneProcessKilledWithRedundancy*"),
    Mutation("a move waits for its copies", "coordinator/core/run_attempt.cc",
             "copies.HasComplete(*copies_stop_)", "copies.under_way()",
             "run_simulation_test", "*RanksMove_*"),
    Mutation("weights are fetched for two jobs at a time", "worker/core/tensor_wants.cc",
             "    return !run_.IsLocal(members[graph.SourceOf(job)]);", "    return true;",
             "run_simulation_test", "*WeightsOfStagesFromHere*"),
    Mutation("spans are awaited from every process", "coordinator/core/span_requests.cc",
             "if (r.run == run) r.awaited.erase(session);", "if (r.run == run) r.awaited.clear();",
             "coordinator_core_test", "SpansTest*"),
    Mutation("a process that is lost is not awaited", "coordinator/core/span_requests.cc",
             "for (Request& r : requests_) r.awaited.erase(session);", "(void)session;",
             "coordinator_core_test", "SpansTest*"),
    Mutation("a trace has whole steps alone", "coordinator/record/run_end.cc",
             "made[j.job.step] < all; });", "made[j.job.step] < 0 * all; });",
             "run_record_test", "ResultsSoFar*"),
    Mutation("a job is done once", "coordinator/core/work_queue.cc",
             "  if (state == kDone) return Outcome::kDuplicate;\n", "",
             "coordinator_core_test", "*"),
    Mutation("a damaged checkpoint is left out", "coordinator/core/run_attempts.cc",
             "  checkpoints_.erase(damaged_step);\n", "",
             "coordinator_core_test", "*"),
    Mutation("a poison job spends three processes", "coordinator/core/run_failures.cc",
             "suspects_.Poisoned(options_.poison_losses)", "suspects_.Poisoned(2 * options_.poison_losses)",
             "coordinator_core_test", "*Poison*"),
    Mutation("a job that hangs has a deadline", "coordinator/core/job_watch.cc",
             "if (r.age_ns > limit && !verdict.stuck.has_value()) {", "if (r.age_ns < 0) {",
             "coordinator_core_test", "JobWatch*"),
    Mutation("a job that runs is what others wait for", "coordinator/core/run.cc",
             "  if (!running.empty()) deadlines_.Run(out.now);\n", "",
             "run_simulation_test", "*QuarterOfAnHour*"),
    Mutation("a tensor is asked for again", "worker/shell/transport/transfer_table.cc",
             "    keys.push_back(key);\n", "",
             "run_simulation_test", "*BetweenWorkersLost*"),
    Mutation("a tensor that was lost is sent again", "worker/shell/transport/held_offers.h",
             "return {Again::kSend, id};", "return {Again::kOnItsWay, id};",
             "transport_conformance_test", "LoopbackFaults*"),
    Mutation("a step with a bad number is made once more", "coordinator/core/run_failures.cc",
             "|| step <= info_->non_finite_step) return false;", "|| step < 0) return false;",
             "coordinator_core_test", "*NotFinite*"),
    Mutation("a failure behind the last checkpoint costs no step", "coordinator/core/run.cc",
             "if (GoesOnWithout(out, member, absl::StrCat(\"failed: \", m.reason))) return;", "",
             "coordinator_core_test", "*FailureBehindTheLastCheckpoint*"),
    Mutation("a failure whose cause is sought costs no step once the run has its results",
             "coordinator/core/run_finish.cc",
             "if (!failures_.any() || !HasResults()) return std::nullopt;", "return std::nullopt;",
             "coordinator_core_test", "*FailureBehindTheLastCheckpoint*"),
    Mutation("a broken link does not fail a validation of the last weights",
             "worker/shell/loop/effect_runner.cc", "if (link_failed && core_.has_results()) continue;", "",
             "worker_loop_test", "*PeerIsLostBehindTheLastCheckpoint*"),
    Mutation("a process that failed is told when its run has finished", "coordinator/core/coordinator_core.cc",
             "state == RunState::kFinished && !m.failed", "state == RunState::kFinished",
             "coordinator_core_test", "*FailureBehindTheLastCheckpoint*"),
    Mutation("a removed folder still belongs to its run", "coordinator/record/run_records.cc",
             "if (!recording->IsIn(path)) continue;", "continue;",
             "run_record_test", "*FolderOfARunThatWasRemoved*"),
    Mutation("a restored run without a plan ends in its folder", "coordinator/shell/restored_runs.cc",
             "folders->EndUnplanned(run->stored, RunState::kFailed, run->failure);", "absl::OkStatus();",
             "run_record_test", "*RunThatCannotBePlanned*"),
    Mutation("a window of several begins with the pattern of one", "planner/placement_search.cc",
             "if (options_.batches > 1) BeginWithSingle();", "",
             "planning_test", "*WindowOfSeveralWithoutTime*"),
    Mutation("completions gather for a bounded time", "worker/shell/loop/worker_loop.cc",
             "now + options_.gather_ns", "INT64_MAX",
             "worker_loop_test", "*BeforeALongJob*"),
    Mutation("a busy process keeps its completions", "worker/shell/loop/work_threads.cc",
             "driver_ == kMain ? host_.SendDue() : host_.SendGathered()", "host_.SendGathered()",
             "worker_loop_test", "*SendsOnlyWhatIsDue*"),
    Mutation("completions that are not due stay", "worker/shell/loop/worker_loop.cc",
             "outbox_.due_ns() <= MonotonicNow() && ", "",
             "worker_loop_test", "*StayWhereTheyAre*"),
    Mutation("the last completion of a step does not wait", "worker/core/worker_run.cc",
             "{completion}}, step_ends}", "{completion}}, step_ends && false}",
             "worker_core_test", "*IsToldSoon*"),
    Mutation("urgent completions leave before the next job", "worker/shell/loop/effect_runner.cc",
             "(outbox_.is_full() || urgent) && !", "outbox_.is_full() && !",
             "worker_loop_test", "*OfAWatchedStep*"),
    Mutation("a restored run that had ended gets its folder ended", "coordinator/core/coordinator_core.cc",
             "if (run.state() == RunState::kFailed || run.state() == RunState::kCancelled)",
             "if (run.state() == RunState::kFailed)",
             "coordinator_core_test", "*HasNoProcessThatWouldTellMore*"),
]


def wrong_texts():
    """Returns what is wrong with the list: texts that are not in the source exactly once."""
    wrong = []
    for m in MUTATIONS:
        count = (SOURCE / m.file).read_text().count(m.text)
        if count != 1:
            wrong.append(f"{m.name}: {m.file} has its text {count} times: {m.text!r}")
    return wrong


def copy_tree(to):
    """Brings the copy up to date; files that did not change keep their times, so that little is built again."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=SOURCE, check=True,
                            capture_output=True).stdout.decode().split("\0")
    for name in filter(None, listed):
        source, copy = SOURCE / name, to / name
        if not source.is_file() or (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    deps = to / "build/deps"
    if not deps.exists():
        deps.parent.mkdir(parents=True, exist_ok=True)
        deps.symlink_to((SOURCE / "build/deps").resolve())


class Copy:
    """The copy of the tree, its build, and its tests."""

    def __init__(self, tree):
        self.tree = tree
        self.build_dir = tree / "build/release"
        copy_tree(tree)
        if not (self.build_dir / "build.ninja").exists():
            subprocess.run(["cmake", "--preset", "release"], cwd=tree, check=True, stdout=subprocess.DEVNULL)

    def build(self, targets):
        """Returns "" or the errors of the build."""
        done = subprocess.run(["ninja", "-C", self.build_dir, "-j", str(os.cpu_count()), *targets],
                              capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout[-2000:] + done.stderr[-2000:]

    def passes(self, m):
        environment = dict(os.environ, WEFT_SOURCE=str(self.tree), WEFT_BIN=str(self.build_dir / "bin"),
                           UCX_LOG_LEVEL="error")
        try:
            done = subprocess.run([self.build_dir / "tests" / m.test, f"--gtest_filter={m.filter}",
                                   "--gtest_fail_fast"], env=environment, timeout=300, capture_output=True)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0 and b"[       OK ]" in done.stdout  # a filter that fits nothing passes too

    def outcome(self, m):
        """Applies the mutation, and says what its test makes of it."""
        path = self.tree / m.file
        whole = path.read_text()
        path.write_text(whole.replace(m.text, m.weaker))
        try:
            errors = self.build([m.test])
            if errors:
                print(errors, file=sys.stderr)
                return "does not build"
            return "NOT NOTICED" if self.passes(m) else "noticed"
        finally:
            path.write_text(whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=SOURCE / "build/release")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only mutations whose name contains one of these")
    parser.add_argument("--check", action="store_true", help="only look whether each text is still in the source")
    options = parser.parse_args()
    wrong = wrong_texts()
    if wrong or options.check:
        sys.exit("\n".join(wrong) if wrong else 0)
    chosen = [m for m in MUTATIONS if not options.only or any(words in m.name for words in options.only)]

    copy = Copy(options.build.resolve() / "mutations")
    errors = copy.build(sorted({m.test for m in chosen}))
    if errors:
        sys.exit(f"the unchanged tree does not build:\n{errors}")
    for m in chosen:
        if not copy.passes(m):
            sys.exit(f"{m.test} --gtest_filter={m.filter} fails in the unchanged tree")

    print("| weakened guard | test | outcome | seconds |\n| --- | --- | --- | --- |", flush=True)
    failed = False
    for m in chosen:
        began = time.monotonic()
        outcome = copy.outcome(m)
        failed |= outcome != "noticed"
        print(f"| {m.name} | `{m.test} {m.filter}` | {outcome} | {time.monotonic() - began:.0f} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
