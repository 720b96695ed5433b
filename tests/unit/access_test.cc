// Tests who may call what. Every method of every service is in the table: a new one without a line fails
// here.
#include "proto/session/access.h"

#include <google/protobuf/descriptor.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "health/health.pb.h"
#include "weft/v1/runs.pb.h"
#include "weft/v1/session.pb.h"
#include "weft/v1/store.pb.h"

namespace weft::access_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The methods of all files of proto/weft/v1 and of gRPC's health service, as gRPC names them.
std::set<std::string> AllMethods() {
  // A use of one message of a file loads the file into the pool of descriptors.
  v1::SubmitRequest::descriptor();
  v1::WorkerMessage::descriptor();
  v1::StoredSubmission::descriptor();
  grpc::health::v1::HealthCheckRequest::descriptor();
  std::set<std::string> methods;
  std::vector<std::string> names = {"health/health.proto"};
  const std::string folder = absl::StrCat(std::getenv("WEFT_SOURCE"), "/proto/weft/v1");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(absl::StrCat("weft/v1/", entry.path().filename().string()));
  }
  for (const std::string& name : names) {
    const auto* file = google::protobuf::DescriptorPool::generated_pool()->FindFileByName(name);
    if (file == nullptr) {
      ADD_FAILURE() << name << " is not linked into this test";
      continue;
    }
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.insert(
            absl::StrCat("/", file->service(s)->full_name(), "/", file->service(s)->method(m)->name()));
      }
    }
  }
  return methods;
}

TEST(Access, EveryMethodOfEveryService_HasOneLineAndARole) {
  std::set<std::string> listed;
  for (const MethodAccess& method : AccessTable()) {
    EXPECT_TRUE(listed.insert(std::string(method.path)).second) << method.path << " is there twice";
    EXPECT_THAT(method.roles, Not(IsEmpty())) << method.path;
  }
  EXPECT_EQ(listed, AllMethods());
  EXPECT_GT(listed.size(), 5u);
}

TEST(Access, MethodThatIsNotInTheTable_NobodyMayCall) {
  for (const Role role : kRoles) {
    for (const char* path : {"/weft.v1.Runs/Nothing", "/weft.v1.Runs/submit", "weft.v1.Runs/Submit", "",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
      EXPECT_TRUE(absl::IsPermissionDenied(CheckAccess({role, "a"}, path))) << path;
    }
  }
}

TEST(Access, RolesThatOnlyLook_ChangeNothing) {
  for (const Role role : {Role::kViewer, Role::kMetrics, Role::kCoordinator, Role::kWorker}) {
    for (const char* path :
         {"/weft.v1.Runs/Submit", "/weft.v1.Runs/Cancel", "/weft.v1.Runs/Move", "/weft.v1.Runs/Drain"}) {
      EXPECT_TRUE(absl::IsPermissionDenied(CheckAccess({role, "a"}, path))) << RoleName(role) << path;
    }
  }
}

TEST(Access, SessionOfAWorker_IsTheWorkersAlone) {
  for (const Role role : kRoles) {
    EXPECT_EQ(CheckAccess({role, "a"}, "/weft.v1.Coordination/Session").ok(), role == Role::kWorker);
  }
}

TEST(Access, HealthOfTheServer_IsForEveryIdentity) {
  for (const Role role : kRoles) {
    EXPECT_TRUE(CheckAccess({role, "a"}, "/grpc.health.v1.Health/Check").ok()) << RoleName(role);
    EXPECT_TRUE(CheckAccess({role, "a"}, "/grpc.health.v1.Health/Watch").ok()) << RoleName(role);
    EXPECT_FALSE(CheckAccess({role, "a"}, "/grpc.health.v1.Health/List").ok()) << RoleName(role);
  }
}

TEST(Access, Refusal_NamesCallerMethodAndRoles) {
  EXPECT_THAT(std::string(CheckAccess({Role::kViewer, "alice"}, "/weft.v1.Runs/Submit").message()),
              ::testing::AllOf(HasSubstr("viewer 'alice' may not call /weft.v1.Runs/Submit"),
                               HasSubstr("admin, submitter")));
}

TEST(Access, IdentityInACertificate_IsReadBack) {
  for (const Role role : kRoles) {
    const Identity identity{role, "a-b.c@d_1"};
    EXPECT_EQ(*IdentityOf({"https://example.com/x", identity.uri()}), identity);
  }
}

TEST(Access, CertificateWithoutOneClearIdentity_IsRefused) {
  for (const std::vector<std::string>& uris :
       std::vector<std::vector<std::string>>{{},
                                             {"spiffe://cluster/worker/a"},
                                             {"weft://worker"},
                                             {"weft://worker/"},
                                             {"weft://root/a"},
                                             {"weft://worker/a/b"},
                                             {"WEFT://worker/a"},
                                             {"weft://worker/a b"},
                                             {absl::StrCat("weft://worker/", std::string(64, 'a'))},
                                             {"weft://worker/a", "weft://admin/a"},
                                             {"weft://worker/a", "weft://worker/a"}}) {
    EXPECT_TRUE(absl::IsUnauthenticated(IdentityOf(uris).status())) << ::testing::PrintToString(uris);
  }
}

}  // namespace
}  // namespace weft::access_test
