// Folders of certificates: what is wrong is found by name of the file, and what changes is taken when it is
// right.
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/certificates/certificate_authority.h"
#include "base/certificates/certificate_folder.h"
#include "base/certificates/certificate_watch.h"
#include "base/certificates/openssl_objects.h"
#include "base/certificates/secret_text.h"
#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_folder.h"

namespace weft::certificates_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Validity From(absl::Duration begin, absl::Duration end) {
  return {absl::ToUnixSeconds(absl::Now() + begin), absl::ToUnixSeconds(absl::Now() + end)};
}
const Validity kNow = From(-absl::Hours(1), absl::Hours(24));

KeyedCertificate Authority() { return *MakeAuthority("test authority", kNow); }

KeyedCertificate Issue(const KeyedCertificate& authority, const Validity& validity = kNow) {
  return *IssueCertificate(authority, {"a worker", "weft://worker/a", {"a.test", "10.0.0.1"}, validity});
}

class CertificateFiles : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);  // nobody reads half of it
  }
  void Put(const KeyedCertificate& authority, const KeyedCertificate& own) const {
    Write("ca.crt", authority.certificate);
    Write("tls.crt", own.certificate);
    Write("tls.key", own.key);
  }
  std::string Problem() const {
    const auto read = ReadCertificateFolder(folder_, OwnCertificate::kRequired);
    if (read.ok()) return "";
    EXPECT_TRUE(absl::IsFailedPrecondition(read.status()));
    return std::string(read.status().message());
  }

  const TestFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(CertificateFiles, ThatFitTogether_AreReadWithTheirIdentity) {
  const KeyedCertificate authority = Authority();
  Put(authority, Issue(authority));
  const auto read = ReadCertificateFolder(folder_, OwnCertificate::kRequired);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->uris, ElementsAre("weft://worker/a"));
  EXPECT_EQ(read->expires, kNow.end);
  EXPECT_EQ(read->authorities, authority.certificate);
}

TEST_F(CertificateFiles, ThatDoNotFit_AreNamed) {
  const KeyedCertificate authority = Authority(), other = Authority();
  const KeyedCertificate own = Issue(authority);
  EXPECT_THAT(Problem(), HasSubstr("ca.crt cannot be read"));
  Put(authority, {own.certificate, Issue(authority).key});
  EXPECT_THAT(Problem(), HasSubstr("tls.key is not the key of tls.crt"));
  Put(other, own);
  EXPECT_THAT(Problem(), AllOf(HasSubstr("tls.crt is not accepted by the authorities"), HasSubstr("ca.crt")));
  Put(authority, Issue(authority, From(-absl::Hours(2), -absl::Hours(1))));
  EXPECT_THAT(Problem(), HasSubstr("tls.crt has expired, on "));
  Put(authority, Issue(authority, From(absl::Hours(1), absl::Hours(2))));
  EXPECT_THAT(Problem(), HasSubstr("not yet valid"));
  Put(authority, {"text", own.key});
  EXPECT_THAT(Problem(), HasSubstr("tls.crt has no certificates in PEM form"));
  Put(authority, {own.certificate.substr(0, own.certificate.size() / 2), own.key});
  EXPECT_THAT(Problem(), HasSubstr("tls.crt has no certificates in PEM form"));
  Put(authority, {own.certificate, "text"});
  EXPECT_THAT(Problem(), HasSubstr("tls.key has no private key"));
  Put(authority, own);
  EXPECT_EQ(Problem(), "");
}

// A certificate that is not the authority's may not sign others.
TEST_F(CertificateFiles, IssuedByACertificateThatIsNoAuthority_AreRefused) {
  const KeyedCertificate authority = Authority();
  const KeyedCertificate worker = Issue(authority);
  KeyedCertificate forged = *IssueCertificate(worker, {"forged", "weft://admin/a", {}, kNow});
  forged.certificate += worker.certificate;
  Put(authority, forged);
  EXPECT_THAT(Problem(), HasSubstr("not accepted by the authorities"));
}

TEST_F(CertificateFiles, WithoutAnOwnCertificate_AreEnoughWhereItIsOptional) {
  Write("ca.crt", Authority().certificate);
  const auto read = ReadCertificateFolder(folder_, OwnCertificate::kOptional);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->identity, "");
  EXPECT_FALSE(ReadCertificateFolder(folder_, OwnCertificate::kRequired).ok());
}

TEST(CertificateAuthority, HostThatIsNone_IsRefused) {
  for (const char* host : {"", "a b", "a,URI:weft://admin/x", "a\nb", "10.0.0.1:80"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        IssueCertificate(Authority(), {"x", "weft://worker/a", {host}, kNow}).status()))
        << host;
  }
}

TEST(CertificateAuthority, Certificate_IsGoodForItsEndsAlone) {
  using enum CertificateEnds;
  for (const CertificateEnds ends : {kServer, kClient, kBoth}) {
    const auto made = IssueCertificate(Authority(), {"x", "weft://worker/a", {}, kNow, ends});
    const std::vector<OpensslCertificate> chain = CertificatesOf(made->certificate);
    X509* const certificate = chain.front().get();
    EXPECT_EQ(X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0), ends == kClient ? 0 : 1);
    EXPECT_EQ(X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, 0), ends == kServer ? 0 : 1);
  }
}

TEST(CertificateAuthority, HostOfACertificateThatServesNobody_IsRefused) {
  const auto made = IssueCertificate(
      Authority(), {"viewer 'a'", "weft://viewer/a", {"a.test"}, kNow, CertificateEnds::kClient});
  EXPECT_TRUE(absl::IsInvalidArgument(made.status()));
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("viewer 'a' serves nobody"));
}

// After so long a test fails instead of waiting on.
const int64_t kHang = int64_t{60'000'000'000} * [] {
  const char* factor = std::getenv("WEFT_TEST_TIME_FACTOR");
  return factor == nullptr ? 1 : std::atoi(factor);
}();

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_F(CertificateFiles, Replaced_AreTakenWhenTheyFitAndNotBefore) {
  const KeyedCertificate authority = Authority();
  const KeyedCertificate first = Issue(authority), second = Issue(authority);
  Put(authority, first);
  Notification changed, refused;
  std::string why;
  CertificateWatch::Observer observer;
  observer.changed = [&](const CertificateFolder&) { changed.Notify(); };
  observer.refused = [&](const absl::Status& status) {
    why = std::string(status.message());
    refused.Notify();
  };
  const auto watch = CertificateWatch::Start(folder_, OwnCertificate::kRequired, observer);
  ASSERT_TRUE(watch.ok()) << watch.status();
  const std::string before = Contents((*watch)->identity_path());
  EXPECT_THAT(before, AllOf(HasSubstr(first.certificate), HasSubstr(first.key)));
  Write("tls.crt", second.certificate);
  ASSERT_TRUE(refused.WaitWithTimeout(kHang));
  EXPECT_THAT(why, HasSubstr("tls.key is not the key of tls.crt"));
  EXPECT_EQ(Contents((*watch)->identity_path()), before);
  Write("tls.key", second.key);
  ASSERT_TRUE(changed.WaitWithTimeout(kHang));
  EXPECT_THAT(Contents((*watch)->identity_path()),
              AllOf(HasSubstr(second.certificate), HasSubstr(second.key)));
  EXPECT_EQ(Contents((*watch)->authorities_path()), authority.certificate);
}

TEST(SecretText, Hash_IsThatOfTheStandard) {
  EXPECT_EQ(Sha256Of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_NE(RandomSecret(), RandomSecret());
  EXPECT_EQ(RandomSecret().size(), 64u);
  EXPECT_TRUE(EqualSecrets("ab", "ab"));
  EXPECT_FALSE(EqualSecrets("ab", "ac"));
  EXPECT_FALSE(EqualSecrets("ab", "abc"));
}

}  // namespace
}  // namespace weft::certificates_test
