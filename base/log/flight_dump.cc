#include "base/log/flight_dump.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/monotonic_clock.h"

namespace weft {
namespace {

// Gathers text, and writes it in parts.
class Page {
 public:
  explicit Page(int descriptor) : descriptor_(descriptor) {}

  void Put(absl::string_view text) {
    while (!text.empty() && error_ == 0) {
      const size_t size = std::min(text.size(), bytes_.size() - size_);
      std::memcpy(bytes_.data() + size_, text.data(), size);
      size_ += size;
      text.remove_prefix(size);
      if (size_ == bytes_.size()) Flush();
    }
  }
  // Puts the number with at least so many digits.
  void Put(int64_t number, int digits = 1) {
    std::array<char, 20> text;
    size_t first = text.size();
    for (; number != 0 || digits > 0; number /= 10, --digits)
      text[--first] = static_cast<char>('0' + number % 10);
    Put({text.data() + first, text.size() - first});
  }
  // Puts "time=2026-11-22T14:20:11.123456Z", for nanoseconds since 1970. gmtime_r may take a lock, which the
  // thread that a signal interrupted may hold.
  void PutTime(int64_t unix_ns) {
    constexpr int64_t kSecond = 1'000'000'000, kDay = 86'400;
    const int64_t seconds = unix_ns / kSecond, of_day = seconds % kDay;
    // The Gregorian calendar repeats after 146097 days; a year is counted from March on, so that the day of a
    // leap year is its last.
    const int64_t days = seconds / kDay + 719'468;  // from the 1st of March of the year 0
    const int64_t era = days / 146'097, day = days % 146'097;
    const int64_t year = (day - day / 1'460 + day / 36'524 - day / 146'096) / 365;
    const int64_t day_of_year = day - (365 * year + year / 4 - year / 100);
    const int64_t month = (5 * day_of_year + 2) / 153;  // from March, 0, on
    Put("time=");
    Put(era * 400 + year + (month >= 10 ? 1 : 0), 4);
    Put("-");
    Put(month >= 10 ? month - 9 : month + 3, 2);
    Put("-");
    Put(day_of_year - (153 * month + 2) / 5 + 1, 2);
    Put("T");
    Put(of_day / 3'600, 2);
    Put(":");
    Put(of_day / 60 % 60, 2);
    Put(":");
    Put(of_day % 60, 2);
    Put(".");
    Put(unix_ns % kSecond / 1'000, 6);
    Put("Z");
  }
  // Writes what is left. Returns 0, or the first errno.
  int Flush() {
    for (size_t done = 0; done < size_ && error_ == 0;) {
      const ssize_t n = write(descriptor_, bytes_.data() + done, size_ - done);
      if (n > 0) {
        done += static_cast<size_t>(n);
      } else if (n == 0 || errno != EINTR) {
        error_ = n == 0 ? EIO : errno;
      }
    }
    size_ = 0;
    return error_;
  }

 private:
  const int descriptor_;
  std::array<char, 4096> bytes_;
  size_t size_ = 0;
  int error_ = 0;
};

}  // namespace

int WriteFlightDump(int descriptor, const FlightRing& ring, int64_t unix_minus_monotonic_ns,
                    const EventText& cause, absl::string_view process) {
  const int64_t now = MonotonicNow();
  Page page(descriptor);
  page.PutTime(now + unix_minus_monotonic_ns);
  page.Put(" ");
  page.Put(cause.view());
  page.Put(process);
  page.Put("\n");
  const uint64_t end = ring.next();
  const uint64_t begin = end - std::min<uint64_t>(end, ring.slots());
  FlightRing::Event event;
  int64_t unreadable = 0;
  for (uint64_t number = begin; number < end; ++number) {
    if (!ring.Read(number, &event)) {
      ++unreadable;
      continue;
    }
    page.PutTime(event.time_ns + unix_minus_monotonic_ns);
    page.Put(" thread=");
    page.Put(event.thread);
    page.Put(" ");
    page.Put(event.view());
    page.Put("\n");
  }
  page.PutTime(now + unix_minus_monotonic_ns);
  page.Put(" event=dump_ends events=");
  page.Put(static_cast<int64_t>(end - begin) - unreadable);
  page.Put(" overwritten=");
  page.Put(static_cast<int64_t>(begin));
  page.Put(" unreadable=");
  page.Put(unreadable);
  page.Put("\n");
  return page.Flush();
}

}  // namespace weft
