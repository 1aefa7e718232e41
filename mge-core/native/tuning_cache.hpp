// The tuning cache: one file of a machine, which all processes share.
//
// In: keys (texts) and values (bytes). Out: the value of the last put. Lines are appended under a lock and
// carry a checksum; a damaged or torn line is skipped. A file that does not begin as one of ours, or that holds mostly
// replaced values, is written anew, and takes the old one's place at once.
#ifndef MGE_NATIVE_TUNING_CACHE_HPP
#define MGE_NATIVE_TUNING_CACHE_HPP

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace mge {

// Any thread.
class TuningCache {
 public:
  static TuningCache& instance();

  // Sets the file ("" keeps entries in memory only) and forgets what was read from another. Reads nothing yet.
  void open(const std::string& path);
  bool get(const std::string& key, std::string* value);
  // Keeps it, and appends it to the file; a file that cannot be written is no error.
  void put(const std::string& key, const std::string& value);
  // A number that is equal for equal content.
  uint64_t hash();
  size_t size();
  // Lines that were skipped because they are damaged.
  size_t damaged();
  // Whether there was a file, and it did not begin as one of ours.
  bool is_foreign();

 private:
  void load_locked();
  void read_new_lines(int file);

  std::mutex lock_;
  std::string path_;
  bool is_loaded_ = false, is_foreign_ = false;
  uint64_t inode_ = 0;  // of the file that was read
  int64_t read_bytes_ = 0;  // of the file, so far
  size_t damaged_ = 0, lines_ = 0;
  std::map<std::string, std::string> entries_;
};

}  // namespace mge

#endif
