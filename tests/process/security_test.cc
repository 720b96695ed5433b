// Mutual TLS with the real programs: who has the right certificate trains and looks, everybody else changes
// nothing and hears why, and certificates are exchanged while runs go on.
#include <arpa/inet.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/certificates/certificate_authority.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/session/access.h"
#include "proto/wire/limits.h"
#include "tests/process/cabled_hosts.h"
#include "tests/process/disturbed_service.h"
#include "tests/process/etcd_server.h"
#include "tests/process/free_ports.h"
#include "weft/v1/runs.grpc.pb.h"

namespace weft::security_test {
namespace {

namespace fs = std::filesystem;
using grpc::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHost[] = "coordinator.test";

Validity ValidFrom(absl::Duration begin, absl::Duration end) {
  return {absl::ToUnixSeconds(absl::Now() + begin), absl::ToUnixSeconds(absl::Now() + end)};
}

class Security : public DisturbedService {
 protected:
  void SetUp() override {
    MakeCertificates("certs");
    fs::create_directory_symlink(folder_ / "certs/coordinator", folder_ / "own");
    address_ = absl::StrCat("127.0.0.1:", FreePorts(1));
    StartCoordinator({});
    worker_flags_ = {"--tls", folder_ / "certs/worker"};
    As("admin");
  }

  void StartCoordinator(const std::vector<std::string>& flags) {
    coordinator_.reset();
    std::vector<std::string> words = {"weft-coordinator", "--listen",     address_,  "--tls", folder_ / "own",
                                      "--output-root",    folder_.path(), "--store", store_};
    words.insert(words.end(), flags.begin(), flags.end());
    coordinator_ = std::make_unique<Command>(words);
    ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds));
  }
  void MakeCertificates(const std::string& name) const {
    const CommandResult made =
        Command::Run({"weft", "certs", "init", folder_ / name, "--host", kHost, "--host", "127.0.0.1"});
    ASSERT_EQ(made.code, 0) << made.err;
  }
  // Lets the commands of weft that follow use the certificates of a role.
  void As(const std::string& role, const std::string& from = "certs") {
    client_flags_ = {"--tls", folder_ / (from + "/" + role)};
  }
  KeyedCertificate Authority(const std::string& from = "certs") const {
    return {ReadWholeFile(folder_ / (from + "/authority/ca.crt")),
            ReadWholeFile(folder_ / (from + "/authority/ca.key"))};
  }
  // A channel of a client that is no program of Weft.
  std::shared_ptr<grpc::Channel> ChannelWith(const KeyedCertificate& own) const {
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride(kHost);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        address_, grpc::SslCredentials({Authority().certificate, own.key, own.certificate}), arguments);
  }
  KeyedCertificate Of(const std::string& role) const {
    return {ReadWholeFile(folder_ / ("certs/" + role + "/tls.crt")),
            ReadWholeFile(folder_ / ("certs/" + role + "/tls.key"))};
  }
  // Calls a method with one message of these bytes, whatever its form is.
  static StatusCode Call(grpc::Channel& channel, const std::string& path, const std::string& bytes = "") {
    grpc::GenericStub stub(channel.shared_from_this());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kSeconds));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    const auto call = stub.PrepareUnaryCall(&context, path, request, &queue);
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status.error_code();
  }
  StatusCode List(const KeyedCertificate& own) const { return Call(*ChannelWith(own), "/weft.v1.Runs/List"); }
  // Trains a run on two workers, to the bits of the plain loop.
  void TrainToTheReference() {
    const std::string file = WriteRun("{1f1b: {}}", 10);
    TrainReference(file);
    StartWorkers(*coordinator_, 2);
    Submit(file);
    EXPECT_EQ(Weft({"wait", "1"}).code, 0);
    ExpectTheReference();
  }
  std::string Runs() const { return Weft({"ls", "-o", "json"}).out; }

  std::string store_ = folder_ / "store";
  std::unique_ptr<Command> coordinator_;
};

TEST_F(Security, TrainingOverMutualTls_EndsWithTheBitsOfThePlainLoop) { TrainToTheReference(); }

TEST_F(Security, EachRoleAndMethod_HasTheCodeOfTheTable) {
  v1::SubmitRequest::descriptor();
  for (const Role role : kRoles) {
    const auto channel = ChannelWith(Of(std::string(RoleName(role))));
    for (const MethodAccess& method : AccessTable()) {
      const std::string path(method.path);
      const bool may = CheckAccess({role, "a"}, path).ok();
      // A watch of the health ends by itself only if nobody can read what it is to watch.
      const StatusCode code = Call(*channel, path, path == "/grpc.health.v1.Health/Watch" ? "\xff" : "");
      if (may) {
        EXPECT_NE(code, StatusCode::PERMISSION_DENIED) << RoleName(role) << " " << path;
        EXPECT_NE(code, StatusCode::UNAUTHENTICATED) << RoleName(role) << " " << path;
        EXPECT_NE(code, StatusCode::UNAVAILABLE) << RoleName(role) << " " << path;
      } else {
        EXPECT_EQ(code, StatusCode::PERMISSION_DENIED) << RoleName(role) << " " << path;
      }
    }
    EXPECT_EQ(Call(*channel, "/weft.v1.Runs/Nothing"), StatusCode::PERMISSION_DENIED);
  }
}

TEST_F(Security, CommandThatARoleMayNot_IsDeniedAndChangesNothing) {
  const std::string file = WriteRun(
      "{1f1b: {}}", 10,
      {{"train",
        "{steps: 1000000, batch: 16, microbatches: 4, seed: 1, clip_norm: 1.0, optimizer: {sgd: {lr: "
        "0.01}}}"}});
  for (const char* role : {"viewer", "worker", "metrics"}) {
    As(role);
    const CommandResult denied = Weft({"submit", file, "--processes", "2", "--out", out_, "--detach"});
    EXPECT_EQ(denied.code, 77) << denied.err;
    EXPECT_THAT(denied.err, HasSubstr("may not call"));
  }
  As("admin");
  EXPECT_EQ(Runs(), "[]\n");
  EXPECT_FALSE(fs::exists(out_));

  StartWorkers(*coordinator_, 2);
  As("submitter");
  Submit(file);
  ASSERT_TRUE(AwaitSteps(3));
  EXPECT_EQ(Weft({"drain", "w0", "--detach"}).code, 77);
  EXPECT_EQ(Weft({"move", "1", "--rank", "0", "--to", "w1", "--detach"}).code, 77);
  As("viewer");
  EXPECT_EQ(Weft({"cancel", "1"}).code, 77);
  EXPECT_EQ(Describe()["state"], "running");
  EXPECT_THAT(Weft({"workers"}).out, AllOf(HasSubstr("w0"), HasSubstr("w1")));
  // A user's certificate opens no session of a worker.
  const CommandResult worker =
      Command::Run({"weft-worker", "--coordinator", address_, "--tls", folder_ / "certs/admin"}, kSeconds);
  EXPECT_EQ(worker.code, 77) << worker.err;
  EXPECT_THAT(worker.err, HasSubstr("admin 'admin' may not call /weft.v1.Coordination/Session"));
  As("submitter");
  EXPECT_EQ(Weft({"cancel", "1"}).code, 0);
}

TEST_F(Security, BadCertificates_AreRefusedAndOthersServed) {
  const KeyedCertificate authority = Authority();
  const KeyedCertificate foreign = *MakeAuthority("foreign", ValidFrom(-absl::Hours(1), absl::Hours(1)));
  const auto issue = [](const KeyedCertificate& by, const std::string& uri, absl::Duration begin,
                        absl::Duration end) {
    return *IssueCertificate(by, {"test", uri, {}, ValidFrom(begin, end)});
  };
  const absl::Duration hour = absl::Hours(1);
  EXPECT_EQ(List({}), StatusCode::UNAVAILABLE) << "none";
  EXPECT_EQ(List(issue(foreign, "weft://admin/a", -hour, hour)), StatusCode::UNAVAILABLE) << "foreign";
  EXPECT_EQ(List(issue(authority, "weft://admin/a", -2 * hour, -hour)), StatusCode::UNAVAILABLE) << "expired";
  EXPECT_EQ(List(issue(authority, "weft://admin/a", hour, 2 * hour)), StatusCode::UNAVAILABLE) << "early";
  // One that a worker's certificate has signed is not of the authority.
  KeyedCertificate forged = issue(Of("worker"), "weft://admin/a", -hour, hour);
  forged.certificate += Of("worker").certificate;
  EXPECT_EQ(List(forged), StatusCode::UNAVAILABLE) << "signed by a worker";
  EXPECT_EQ(List(*IssueCertificate(
                authority, {"test", "weft://admin/a", {}, ValidFrom(-hour, hour), CertificateEnds::kServer})),
            StatusCode::UNAVAILABLE)
      << "for servers";
  EXPECT_EQ(List(issue(authority, "weft://root/a", -hour, hour)), StatusCode::UNAUTHENTICATED) << "no role";
  EXPECT_EQ(List(issue(authority, "spiffe://c/a", -hour, hour)), StatusCode::UNAUTHENTICATED)
      << "no identity";
  EXPECT_EQ(List(issue(authority, "weft://viewer/a", -hour, hour)), StatusCode::OK);
  EXPECT_EQ(Weft({"ls"}).code, 0);
}

// A handshake that never ends, or is none, holds a descriptor and nothing else.
TEST_F(Security, SilentAndSenselessConnections_KeepNobodyWaiting) {
  const int port = std::stoi(address_.substr(address_.rfind(':') + 1));
  std::vector<int> sockets;
  const std::string hello("\x16\x03\x01\x02\x00\x01", 6);  // the start of a ClientHello
  for (const std::string& text :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), hello, std::string(100'000, '\xff'),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}) {
    for (int i = 0; i < 50; ++i) {
      sockets.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<uint16_t>(port));
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      ASSERT_EQ(connect(sockets.back(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
      send(sockets.back(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
  TrainToTheReference();
  for (const int fd : sockets) close(fd);
}

TEST_F(Security, LargeMessage_IsRefusedUnread) {
  EXPECT_EQ(Call(*ChannelWith(Of("admin")), "/weft.v1.Runs/Submit", std::string(kMaxReceivedBytes + 1, 'x')),
            StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Weft({"ls"}).code, 0);
}

TEST_F(Security, ProgramWithWrongFiles_NamesThemBeforeItConnects) {
  MakeCertificates("other");
  const std::string mixed = folder_ / "certs/viewer";
  fs::copy_file(folder_ / "other/viewer/tls.key", mixed + "/tls.key", fs::copy_options::overwrite_existing);
  As("viewer");
  const CommandResult client = Weft({"ls"});
  EXPECT_EQ(client.code, 78);
  EXPECT_THAT(client.err, HasSubstr("tls.key is not the key of tls.crt"));
  const CommandResult worker = Command::Run({"weft-worker", "--coordinator", address_, "--tls", mixed}, 60);
  EXPECT_EQ(worker.code, 78) << worker.err;
  const CommandResult coordinator =
      Command::Run({"weft-coordinator", "--listen", "127.0.0.1:0", "--tls", mixed}, 60);
  EXPECT_EQ(coordinator.code, 78);
  // Only a coordinator's certificate serves.
  const CommandResult impostor =
      Command::Run({"weft-coordinator", "--listen", "127.0.0.1:0", "--tls", folder_ / "certs/worker"}, 60);
  EXPECT_EQ(impostor.code, 78);
  EXPECT_THAT(impostor.err, HasSubstr("it is that of worker 'worker'"));
}

TEST_F(Security, WithoutTls_AClientOfATlsAddressReachesNothing) {
  client_flags_ = {};
  const CommandResult plain = Weft({"ls"});
  EXPECT_EQ(plain.code, 69) << plain.err;
  EXPECT_THAT(plain.err, HasSubstr("if it has TLS, give --tls DIR"));
  As("admin", "certs");
  EXPECT_EQ(Weft({"ls"}).code, 0);
}

// A server of the run API with a certificate of any role, which answers UNIMPLEMENTED.
class Impostor {
 public:
  Impostor(const KeyedCertificate& authority, const KeyedCertificate& own) {
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
    options.pem_root_certs = authority.certificate;
    options.pem_key_cert_pairs = {{own.key, own.certificate}};
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port_);
    builder.RegisterService(&runs_);
    server_ = builder.BuildAndStart();
  }
  ~Impostor() { server_->Shutdown(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  v1::Runs::Service runs_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A server with a worker's certificate gets nothing from a client, though its authority is the same.
TEST_F(Security, ServerThatIsNoCoordinator_IsNotBelieved) {
  const Impostor impostor(Authority(), Of("worker"));
  address_ = impostor.address();
  const CommandResult asked = Weft({"ls"});
  EXPECT_EQ(asked.code, 69) << asked.err;  // 1 would say that the impostor was asked
}

// A client that knows nothing of roles compares hosts, by their names or by their addresses.
TEST_F(Security, ServerThatIsNoCoordinator_IsNotBelievedByAClientThatComparesHosts) {
  const auto list = [this](const std::string& host) {
    grpc::ChannelArguments arguments;
    if (!host.empty()) arguments.SetSslTargetNameOverride(host);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const KeyedCertificate own = Of("admin");
    const auto channel = grpc::CreateCustomChannel(
        address_, grpc::SslCredentials({Authority().certificate, own.key, own.certificate}), arguments);
    return Call(*channel, "/weft.v1.Runs/List");
  };
  EXPECT_EQ(list(kHost), StatusCode::OK);
  EXPECT_EQ(list(""), StatusCode::OK);
  for (const Role role : kRoles) {
    const Impostor impostor(Authority(), Of(std::string(RoleName(role))));
    address_ = impostor.address();
    // The same server with the coordinator's certificate is believed: nothing but the certificate decides.
    const StatusCode expected =
        role == Role::kCoordinator ? StatusCode::UNIMPLEMENTED : StatusCode::UNAVAILABLE;
    EXPECT_EQ(list(kHost), expected) << RoleName(role);
    EXPECT_EQ(list(""), expected) << RoleName(role);
  }
}

TEST_F(Security, HostsOfCerts_AreThoseOfProgramsThatServe) {
  const auto add = [this](const std::string& role) {
    return Command::Run(
        {"weft", "certs", "add", folder_ / "certs", "--role", role, "--name", "a", "--host", "a.test"});
  };
  EXPECT_EQ(add("worker").code, 0);
  EXPECT_EQ(add("coordinator").code, 0);
  for (const char* role : {"admin", "submitter", "viewer", "metrics"}) {
    const CommandResult refused = add(role);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr(absl::StrCat("the certificate of ", role, " 'a' serves nobody")));
  }
  const CommandResult wrong = Command::Run({"weft", "certs", "init", folder_ / "wrong", "--host", "a b"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("\"a b\" is neither the name of a host nor an IP address"));
  EXPECT_FALSE(fs::exists(folder_ / "wrong"));
}

TEST_F(Security, CertificatesInAFolderWithoutPermission_SaySo) {
  const std::string locked = folder_ / "locked";
  fs::create_directory(locked);
  fs::permissions(locked, fs::perms::owner_read | fs::perms::owner_exec);
  if (Command::Run(HeldToPermissions({"weft", "--version"})).code != 0)
    GTEST_SKIP() << "NOT TESTED: setpriv is not here";
  const CommandResult refused = Command::Run(HeldToPermissions({"weft", "certs", "init", locked + "/certs"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("cannot create " + locked + "/certs: Permission denied"));
}

TEST_F(Security, NewCertificates_AreTakenWhileARunGoesOn) {
  const std::string file = WriteRun("{1f1b: {}}", 300);
  TrainReference(file);
  StartWorkers(*coordinator_, 2);
  Submit(file);
  ASSERT_TRUE(AwaitSteps(5));
  // Half of a replacement changes nothing.
  MakeCertificates("next");
  const std::string crt = folder_ / "own/tls.crt", old_crt = ReadWholeFile(crt);
  fs::copy_file(folder_ / "next/coordinator/tls.crt", crt, fs::copy_options::overwrite_existing);
  ASSERT_TRUE(coordinator_->WaitFor("new certificates or tokens are not taken: ", kSeconds));
  EXPECT_EQ(Weft({"ls"}).code, 0);
  folder_.Write("own/tls.crt", old_crt);
  // Another authority in one step: new clients need its certificates, the sessions of the workers go on.
  fs::create_directory_symlink(folder_ / "next/coordinator", folder_ / "own.next");
  fs::rename(folder_ / "own.next", folder_ / "own");
  ASSERT_TRUE(coordinator_->WaitFor("new certificates, valid until", kSeconds));
  As("admin", "next");
  EXPECT_TRUE(Eventually([&] { return Weft({"ls"}).code == 0; }));
  EXPECT_EQ(Weft({"wait", "1"}).code, 0);
  ExpectTheReference();
  As("admin", "certs");
  EXPECT_EQ(Weft({"ls"}).code, 69);
}

TEST_F(Security, InitAgain_RenewsWithTheSameAuthorityInOneStep) {
  const std::string authority = Authority().certificate, before = Of("coordinator").certificate;
  MakeCertificates("certs");
  EXPECT_EQ(Authority().certificate, authority);
  EXPECT_NE(Of("coordinator").certificate, before);
  ASSERT_TRUE(coordinator_->WaitFor("new certificates, valid until", kSeconds));
  EXPECT_TRUE(Eventually([&] { return Weft({"ls"}).code == 0; }));
}

// Reads a page of a process's metrics as a role does. The process's certificate must name the host.
CommandResult ReadMetrics(int port, const std::string& path, const std::string& certificates,
                          const std::string& host = kHost) {
  return Command::Run(
      {"/usr/bin/env", "curl", "-s", "--max-time", "60", "--cacert", certificates + "/ca.crt", "--cert",
       certificates + "/tls.crt", "--key", certificates + "/tls.key", "--resolve",
       absl::StrCat(host, ":", port, ":127.0.0.1"), absl::StrCat("https://", host, ":", port, path)},
      120);
}

TEST_F(Security, StatusPageOnAnAddressOfOtherMachines_IsForThoseWhoMayLookAtRuns) {
  const int port = FreePorts(1);
  StartCoordinator({"--metrics", absl::StrCat("0.0.0.0:", port)});
  for (const char* page : {"/", "/status.json", "//metrics", "/?/metrics"}) {
    for (const char* role : {"viewer", "submitter", "admin"})
      EXPECT_THAT(ReadMetrics(port, page, folder_ / (absl::StrCat("certs/", role))).out,
                  Not(HasSubstr("may not read this page")))
          << role << page;
    for (const char* role : {"metrics", "worker"})
      EXPECT_EQ(ReadMetrics(port, page, folder_ / (absl::StrCat("certs/", role))).out,
                "this certificate may not read this page\n")
          << role << page;
  }
  EXPECT_THAT(ReadMetrics(port, "/", folder_ / "certs/viewer").out, HasSubstr("No run was submitted yet."));
}

TEST_F(Security, MetricsOnAnAddressOfOtherMachines_AreReadOverTlsByTheRolesForIt) {
  const int port = FreePorts(2);
  StartCoordinator({"--metrics", absl::StrCat("0.0.0.0:", port)});
  constexpr char kWorkerHost[] = "worker.test";
  ASSERT_EQ(Command::Run({"weft", "certs", "add", folder_ / "certs", "--role", "worker", "--name", "worker",
                          "--host", kWorkerHost})
                .code,
            0);
  worker_flags_.insert(worker_flags_.end(), {"--metrics", absl::StrCat("0.0.0.0:", port + 1)});
  StartWorkers(*coordinator_, 1);
  EXPECT_NE(ReadMetrics(port + 1, "/metrics", folder_ / "certs/metrics", kHost).code, 0);
  for (const auto& [one, host] : {std::pair(port, kHost), std::pair(port + 1, kWorkerHost)}) {
    for (const char* role : {"metrics", "admin"}) {
      const CommandResult read = ReadMetrics(one, "/metrics", folder_ / (absl::StrCat("certs/", role)), host);
      EXPECT_THAT(read.out, HasSubstr("# TYPE weft_")) << role;
      EXPECT_EQ(ReadMetrics(one, "/healthz", folder_ / "certs/metrics", host).out, "ok\n");
    }
    const CommandResult viewer = ReadMetrics(one, "/metrics", folder_ / "certs/viewer", host);
    EXPECT_EQ(viewer.out, "this certificate may not read this page\n");
    MakeCertificates("foreign");
    fs::copy_file(folder_ / "certs/admin/ca.crt", folder_ / "foreign/admin/ca.crt",
                  fs::copy_options::overwrite_existing);
    const CommandResult foreign = ReadMetrics(one, "/metrics", folder_ / "foreign/admin", host);
    EXPECT_NE(foreign.code, 0);
    EXPECT_EQ(foreign.out, "");
    const std::string address = absl::StrCat("127.0.0.1:", one, "/metrics");
    const CommandResult none =
        Command::Run({"/usr/bin/env", "curl", "-s", "--max-time", "60", "-k", "https://" + address}, 120);
    EXPECT_EQ(none.out, "");
    const CommandResult plain =
        Command::Run({"/usr/bin/env", "curl", "-s", "--max-time", "60", "http://" + address}, 120);
    EXPECT_EQ(plain.out, "");
  }
  // A folder that is wrong shows before anything breaks.
  const auto usable = [&](const std::string& value) {
    const std::string page = ReadMetrics(port, "/metrics", folder_ / "certs/metrics").out;
    return page.find("weft_certificate_usable " + value) != std::string::npos;
  };
  EXPECT_TRUE(usable("1"));
  fs::copy_file(folder_ / "foreign/coordinator/tls.key", folder_ / "own/tls.key",
                fs::copy_options::overwrite_existing);
  EXPECT_TRUE(usable("0"));
  // New certificates count for them too.
  MakeCertificates("certs");
  ASSERT_TRUE(coordinator_->WaitFor("new certificates, valid until", kSeconds));
  EXPECT_TRUE(
      Eventually([&] { return ReadMetrics(port, "/healthz", folder_ / "certs/metrics").out == "ok\n"; }));
}

class SecureEtcd : public Security {
 protected:
  void SetUp() override {
    MakeCertificates("etcd");
    ASSERT_TRUE(etcd_.Start(folder_ / "etcd/coordinator")) << EtcdServer::kMissing;
    Security::SetUp();
  }
  EtcdServer etcd_;
};

TEST_F(SecureEtcd, StoreInEtcdOverMutualTls_KeepsRuns) {
  store_ = absl::StrCat("etcd://", etcd_.address(), "/test");
  StartCoordinator({"--store-tls", folder_ / "etcd/admin"});
  Submit(WriteRun("{1f1b: {}}", 10));
  StartCoordinator({"--store-tls", folder_ / "etcd/admin"});
  EXPECT_EQ(Describe()["state"], "waiting");
}

TEST_F(SecureEtcd, CertificatesThatEtcdOrTheCoordinatorDoesNotTrust_LeadToNoStore) {
  coordinator_.reset();
  // A foreign authority, no TLS, and a certificate of etcd for another host.
  MakeCertificates("foreign");
  ASSERT_EQ(Command::Run({"weft", "certs", "init", folder_ / "etcd"}).code, 0);
  EtcdServer elsewhere;
  ASSERT_TRUE(elsewhere.Start(folder_ / "etcd/coordinator"));
  const auto stands_by = [&](const std::string& address, const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"weft-coordinator", "--listen", "127.0.0.1:0", "--store",
                                      absl::StrCat("etcd://", address, "/test")};
    words.insert(words.end(), flags.begin(), flags.end());
    Command coordinator(words);
    return coordinator.WaitFor("standing by; etcd at", kSeconds);
  };
  EXPECT_TRUE(stands_by(etcd_.address(), {}));
  EXPECT_TRUE(stands_by(etcd_.address(), {"--store-tls", folder_ / "foreign/admin"}));
  EXPECT_TRUE(stands_by(elsewhere.address(), {"--store-tls", folder_ / "etcd/admin"}));
  const CommandResult far =
      Command::Run({"weft-coordinator", "--listen", "127.0.0.1:0", "--store", "etcd://10.77.0.9:2379"}, 60);
  EXPECT_EQ(far.code, 78);
  EXPECT_THAT(far.err, AllOf(HasSubstr("--store-tls DIR"), HasSubstr("--store-insecure")));
}

// Users with tokens have a folder with ca.crt alone.
class SecurityTokens : public Security {
 protected:
  void SetUp() override {
    Security::SetUp();
    fs::create_directory(folder_ / "trust");
    fs::copy_file(folder_ / "certs/admin/ca.crt", folder_ / "trust/ca.crt");
    MakeToken("submitter", "alice");
    StartCoordinator({"--tokens", folder_ / "certs/tokens"});
    client_flags_ = {"--tls", folder_ / "trust", "--token-file", folder_ / "alice"};
  }
  // Makes a token, in a file of the name.
  void MakeToken(const std::string& role, const std::string& name) const {
    const CommandResult made =
        Command::Run({"weft", "certs", "token", folder_ / "certs", "--role", role, "--name", name});
    ASSERT_EQ(made.code, 0) << made.err;
    folder_.Write(name, made.out);
  }
};

TEST_F(SecurityTokens, TokenOfARole_MayDoWhatTheRoleMay) {
  EXPECT_EQ(Weft({"ls"}).code, 0);
  const CommandResult denied = Weft({"drain", "w0"});
  EXPECT_EQ(denied.code, 77);
  EXPECT_THAT(denied.err, HasSubstr("submitter 'alice' may not call"));
  // Certificates do as before, and the environment instead of the flag.
  As("admin");
  EXPECT_EQ(Weft({"ls"}).code, 0);
  const std::string token = ReadWholeFile(folder_ / "alice");
  client_flags_ = {"--tls", folder_ / "trust"};
  setenv("WEFT_TOKEN", token.c_str(), 1);
  EXPECT_EQ(Weft({"ls"}).code, 0);
  unsetenv("WEFT_TOKEN");
  EXPECT_THAT(ReadWholeFile(folder_ / "certs/tokens"),
              AllOf(HasSubstr("submitter alice "), Not(HasSubstr(token.substr(0, 64)))));
}

TEST_F(SecurityTokens, RunOfAUser_HasItsOwner) {
  folder_.Write("run.yaml", ReadWholeFile(WriteSmallRun(folder_)));
  EXPECT_EQ(Weft({"submit", folder_ / "run.yaml", "--detach"}).code, 0);
  As("submitter");
  EXPECT_EQ(Weft({"submit", folder_ / "run.yaml", "--detach"}).code, 0);
  const nlohmann::json runs = nlohmann::json::parse(Weft({"ls", "-o", "json"}).out);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["owner"], "alice") << "by token";
  EXPECT_EQ(runs[1]["owner"], "submitter") << "by certificate";
  EXPECT_THAT(Weft({"ls"}).out, AllOf(HasSubstr("owner"), HasSubstr("alice")));
}

TEST_F(SecurityTokens, TokenThatIsReplacedOrRemoved_IsNotKnownAtOnce) {
  const std::string former = ReadWholeFile(folder_ / "alice");
  MakeToken("submitter", "alice");
  EXPECT_EQ(Weft({"ls"}).code, 0);
  folder_.Write("former", former);
  client_flags_ = {"--tls", folder_ / "trust", "--token-file", folder_ / "former"};
  const CommandResult refused = Weft({"ls"});
  EXPECT_EQ(refused.code, 77);
  EXPECT_THAT(refused.err, HasSubstr("the token is not known here"));
  // A file that is wrong changes nothing; without a file there are no tokens.
  client_flags_.back() = folder_ / "alice";
  const std::string right = ReadWholeFile(folder_ / "certs/tokens");
  folder_.Write("certs/tokens", "submitter alice\n");
  EXPECT_EQ(Weft({"ls"}).code, 0);
  ASSERT_TRUE(coordinator_->WaitFor("certs/tokens, line 1: a line has a role", kSeconds));
  fs::remove(folder_ / "certs/tokens");
  EXPECT_EQ(Weft({"ls"}).code, 77);
  folder_.Write("certs/tokens", right);
  EXPECT_EQ(Weft({"ls"}).code, 0);
}

TEST_F(SecurityTokens, CallerWithNeither_IsNotAuthenticated) {
  for (const MethodAccess& method : AccessTable()) {
    EXPECT_EQ(Call(*ChannelWith({}), std::string(method.path)), StatusCode::UNAUTHENTICATED) << method.path;
  }
  const KeyedCertificate foreign = *MakeAuthority("foreign", ValidFrom(-absl::Hours(1), absl::Hours(1)));
  EXPECT_EQ(List(*IssueCertificate(foreign,
                                   {"a", "weft://admin/a", {}, ValidFrom(-absl::Hours(1), absl::Hours(1))})),
            StatusCode::UNAVAILABLE);
  client_flags_ = {"--tls", folder_ / "trust"};
  EXPECT_EQ(Weft({"ls"}).code, 78);
  client_flags_ = {"--tls", folder_ / "trust", "--token-file", folder_ / "nowhere"};
  EXPECT_EQ(Weft({"ls"}).code, 2);
  EXPECT_EQ(
      Command::Run({"weft", "certs", "token", folder_ / "certs", "--role", "worker", "--name", "w"}).code,
      78);
  EXPECT_EQ(
      Command::Run({"weft-coordinator", "--listen", "127.0.0.1:0", "--tokens", folder_ / "certs/tokens"})
          .code,
      78);
}

TEST_F(Security, FilesOfCerts_HaveKeysForTheirOwnerAlone) {
  const CommandResult added = Command::Run(
      {"weft", "certs", "add", folder_ / "certs", "--role", "submitter", "--name", "alice", "--days", "30"});
  EXPECT_EQ(added.code, 0) << added.err;
  EXPECT_THAT(added.out, HasSubstr("weft://submitter/alice"));
  int keys = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "certs")) {
    if (entry.path().extension() != ".key") continue;
    struct stat file;
    ASSERT_EQ(stat(entry.path().c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u) << entry.path();
    ++keys;
  }
  EXPECT_EQ(keys, 1 + 6 + 1);
  As("alice");
  EXPECT_EQ(Weft({"ls"}).code, 0);
  EXPECT_EQ(Weft({"drain", "w0"}).code, 77);
  EXPECT_EQ(Command::Run({"weft", "certs", "add", folder_ / "certs", "--role", "root", "--name", "a"}).code,
            2);
  EXPECT_EQ(
      Command::Run({"weft", "certs", "add", folder_ / "certs", "--role", "admin", "--name", "../a"}).code, 2);
  EXPECT_EQ(Command::Run({"weft", "certs", "add", folder_ / "certs"}).code, 2);
}

// Coordinator, workers and client on two hosts, which have neither memory nor a clock in common.
class SecureHosts : public DisturbedService, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    const std::string missing = hosts_.Make();
    if (!missing.empty()) GTEST_SKIP() << missing;
    ASSERT_EQ(Command::Run({"weft", "certs", "init", folder_ / "certs"}).code, 0);
    address_ = CabledHosts::Address(0) + ":7070";
    coordinator_ = StartOn(0, {"weft-coordinator", "--listen", address_, "--tls",
                               folder_ / "certs/coordinator", "--output-root", folder_.path()});
    ASSERT_TRUE(coordinator_->WaitFor("listening on", kSeconds));
    if (Plane() == "ucx") {
      setenv("UCX_TLS", "tcp,self", 1);
      setenv("UCX_NET_DEVICES", CabledHosts::kInterface, 1);
    }
    setenv("WEFT_SHARED_MEMORY", "0", 1);
    setenv("WEFT_IN_PLACE", "0", 1);
    for (int host = 0; host < 2; ++host) {
      const std::string name = absl::StrCat("host", host);
      workers_.push_back(
          StartOn(host, {"weft-worker", "--coordinator", address_, "--tls", folder_ / "certs/worker",
                         "--name", name, "--data-plane", Plane() == "tls" ? "auto" : Plane()}));
      ASSERT_TRUE(coordinator_->WaitFor(name + ", pid", kSeconds));
    }
  }
  void TearDown() override {
    workers_.clear();
    coordinator_.reset();
    for (const char* name : {"UCX_TLS", "UCX_NET_DEVICES", "WEFT_SHARED_MEMORY", "WEFT_IN_PLACE"})
      unsetenv(name);
  }

  // Returns the value of --data-plane; tls is the default where there are certificates.
  std::string Plane() const { return GetParam(); }
  std::vector<std::string> WordsOn(int host, const std::vector<std::string>& command) const {
    std::vector<std::string> words = hosts_.OnMachine(host);
    words.push_back(absl::StrCat(std::getenv("WEFT_BIN"), "/", command.front()));
    words.insert(words.end(), command.begin() + 1, command.end());
    return words;
  }
  std::unique_ptr<Command> StartOn(int host, const std::vector<std::string>& command) const {
    return std::make_unique<Command>(WordsOn(host, command));
  }
  // Runs a command of weft on the second host, where the coordinator is not.
  CommandResult WeftFar(std::vector<std::string> command, const std::string& role) const {
    command.insert(command.begin(), "weft");
    command.insert(command.end(), {"--coordinator", address_, "--tls", folder_ / ("certs/" + role)});
    return Command::Run(WordsOn(1, command), kSeconds);
  }

  // Checks that the second stage's forwards, on the second machine, begin behind those of the first.
  void ExpectTimesOfOneClock() const {
    constexpr double kError =
        5'000;  // microseconds: what a message takes at least, on a machine with other work
    const nlohmann::json trace = nlohmann::json::parse(ReadWholeFile(out_ + "/trace.json"));
    std::map<std::pair<int, int>, double> first_ends;  // by step and micro-batch
    const auto visit = [&](int stage, const auto& check) {
      for (const nlohmann::json& event : trace["traceEvents"]) {
        if (event.value("cat", "") != "forward" || event["args"]["stage"] != stage) continue;
        check(std::pair<int, int>(event["args"]["step"], event["args"]["microbatch"]), event["ts"],
              event["dur"]);
      }
    };
    visit(0, [&](auto job, double begin, double took) { first_ends[job] = begin + took; });
    int seen = 0;
    visit(1, [&](auto job, double begin, double) {
      EXPECT_GE(begin, first_ends.at(job) - kError) << job.first << " " << job.second;
      EXPECT_LT(begin, first_ends.at(job) + 60e6) << "the cable was out for two seconds";
      ++seen;
    });
    EXPECT_GT(seen, 0);
  }

  CabledHosts hosts_;
  std::unique_ptr<Command> coordinator_;
};

INSTANTIATE_TEST_SUITE_P(DataPlane, SecureHosts, ::testing::Values("tls", "ucx"),
                         [](const auto& info) { return info.param; });

TEST_P(SecureHosts, TrainingWithTheCableOutForAMoment_EndsWithTheBitsOfThePlainLoop) {
  const std::string file = WriteRun("{1f1b: {}}", 200);
  TrainReference(file);
  const CommandResult submitted =
      WeftFar({"submit", file, "--processes", "2", "--out", out_, "--detach"}, "submitter");
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  ASSERT_TRUE(AwaitSteps(5));
  EXPECT_TRUE(workers_[0]->WaitFor(Plane() == "tls" ? "host memory by tls" : "host memory by tcp", kSeconds));
  ASSERT_FALSE(HasSummary()) << "it was too quick for the cable";
  ASSERT_TRUE(hosts_.SetCable(false));
  usleep(2'000'000);
  ASSERT_TRUE(hosts_.SetCable(true));
  EXPECT_EQ(WeftFar({"wait", "1"}, "viewer").code, 0);
  ExpectTheReference();
  const std::string workers = WeftFar({"workers"}, "viewer").out;
  EXPECT_THAT(workers, AllOf(HasSubstr("machine0"), HasSubstr("machine1")));
  ExpectTimesOfOneClock();
}

// A program without TLS refuses to leave the machine, and says what to do.
TEST(SecurityFlags, AddressOfOtherMachinesWithoutTls_IsRefusedByEveryProgram) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"weft-coordinator", "--listen", "10.77.0.9:7070"},
        {"weft-worker", "--coordinator", "10.77.0.9:7070"},
        {"weft-worker", "--coordinator", "127.0.0.1:7070,10.77.0.9:7070"},
        {"weft", "ls", "--coordinator", "10.77.0.9:7070"}}) {
    const CommandResult refused = Command::Run(words, 60);
    EXPECT_EQ(refused.code, 78) << refused.err;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("10.77.0.9:7070"), HasSubstr("--tls DIR"),
                                   HasSubstr("weft certs init"), HasSubstr("--insecure")));
  }
  EXPECT_EQ(Command::Run({"weft", "ls", "--insecure", "--tls", "/nowhere"}, 60).code, 2);
}

}  // namespace
}  // namespace weft::security_test
