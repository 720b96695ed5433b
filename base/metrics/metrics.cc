#include "base/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace weft {
namespace {

[[noreturn]] void Abort(const std::string& name, const char* why) {
  std::fprintf(stderr, "weft: cannot add metric %s: %s\n", name.c_str(), why);
  std::abort();
}

}  // namespace

void Counter::Add(double amount) { series_->Increment(amount); }
void Counter::RaiseTo(double total) {
  const double now = series_->Value();
  if (total > now) series_->Increment(total - now);
}
double Counter::value() const { return series_->Value(); }

void Gauge::Set(double value) { series_->Set(value); }
double Gauge::value() const { return series_->Value(); }

void Histogram::Observe(double value) { series_->Observe(value); }
void Histogram::RaiseTo(const std::vector<double>& counts, double sum) {
  const prometheus::ClientMetric::Histogram now = series_->Collect().histogram;
  std::vector<double> more = counts;
  double before = 0;  // of all smaller buckets
  for (size_t i = 0; i < more.size() && i < now.bucket.size(); ++i) {
    const auto cumulated = static_cast<double>(now.bucket[i].cumulative_count);
    more[i] -= cumulated - before;
    before = cumulated;
  }
  series_->ObserveMultiple(more, sum - now.sample_sum);
}

struct Metrics::Impl {
  // Families of the same name merge, so a family can be named again for each label set.
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

Counter Metrics::AddCounter(const std::string& name, const std::string& help, const Labels& labels) {
  try {
    return Counter(&prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry).Add(labels));
  } catch (const std::exception& e) {
    Abort(name, e.what());
  }
}

Gauge Metrics::AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
  try {
    return Gauge(&prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry).Add(labels));
  } catch (const std::exception& e) {
    Abort(name, e.what());
  }
}

Histogram Metrics::AddHistogram(const std::string& name, const std::string& help,
                                const std::vector<double>& bounds, const Labels& labels) {
  try {
    return Histogram(
        &prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry).Add(labels, bounds));
  } catch (const std::exception& e) {
    Abort(name, e.what());
  }
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

std::vector<double> ExponentialBounds(double first, double factor, int count) {
  std::vector<double> bounds;
  for (double bound = first; count > 0; --count, bound *= factor) bounds.push_back(bound);
  return bounds;
}

}  // namespace weft
