// Keeps the metrics of a process: counters, gauges and histograms with fixed label sets, in the Prometheus
// text format.
//
// This is the adapter of prometheus-cpp, whose headers stay in metrics.cc. A series exists, with 0, from the
// moment it is added, so that absence means a missing exporter and never "nothing happened yet". Names follow
// operations: `weft_` in front, base units, `_total` for counters. Labels have few, known values; never a
// run, a step or a worker.
//
// Thread-safe. Series live as long as the Metrics that made them. Adding the same name and labels again gives
// the same series. Failure: a name or label that Prometheus does not allow aborts, because it is written in
// the program.
#ifndef WEFT_BASE_METRICS_METRICS_H_
#define WEFT_BASE_METRICS_METRICS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace weft {

class Counter {
 public:
  void Add(double amount = 1);
  // Raises this counter to a total that is counted elsewhere.
  void RaiseTo(double total);
  double value() const;

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* series) : series_(series) {}
  prometheus::Counter* series_;
};

class Gauge {
 public:
  void Set(double value);
  double value() const;

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge* series) : series_(series) {}
  prometheus::Gauge* series_;
};

class Histogram {
 public:
  void Observe(double value);
  // Raises this histogram to counts by bucket, not cumulated, and a sum that are kept elsewhere. There is a
  // count for each bucket, the last one of what is above all bounds, and none is lower than before.
  void RaiseTo(const std::vector<double>& counts, double sum);

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram* series) : series_(series) {}
  prometheus::Histogram* series_;
};

class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;

  Metrics();
  ~Metrics();

  Counter AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `bounds` are the upper bounds of the buckets, ascending.
  Histogram AddHistogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                         const Labels& labels = {});

  // Returns all series in the text format 0.0.4.
  std::string Text() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// Returns `count` bounds from `first` on, each `factor` times the one before.
std::vector<double> ExponentialBounds(double first, double factor, int count);

}  // namespace weft

#endif  // WEFT_BASE_METRICS_METRICS_H_
