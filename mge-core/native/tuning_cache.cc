#include "tuning_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

namespace mge {
namespace {

const char HEADER[] = "mge-tuning 1\n";
constexpr size_t HEADER_BYTES = sizeof HEADER - 1;
constexpr int64_t LARGEST_FILE = 64 << 20;  // bytes: more is no cache of ours

uint64_t checksum(const std::string& text, uint64_t hash = 0xcbf29ce484222325) {  // FNV-1a, 64 bits
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

std::string hex(const std::string& bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char c : bytes) {
    text += digits[c >> 4];
    text += digits[c & 15];
  }
  return text;
}

bool unhex(const std::string& text, std::string* bytes) {
  if (text.size() % 2) return false;
  bytes->clear();
  for (size_t i = 0; i < text.size(); i += 2) {
    int byte = 0;
    for (char c : {text[i], text[i + 1]}) {
      int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return false;
      byte = byte << 4 | digit;
    }
    *bytes += static_cast<char>(byte);
  }
  return true;
}

// "<checksum of the rest> <key, hex> <value, hex>\n"
std::string line_of(const std::string& key, const std::string& value) {
  std::string rest = hex(key) + " " + hex(value);
  char sum[20];
  snprintf(sum, sizeof sum, "%016llx ", static_cast<unsigned long long>(checksum(rest)));
  return sum + rest + "\n";
}

bool parse(const std::string& line, std::string* key, std::string* value) {
  size_t space = line.find(' ', 17);
  if (line.size() < 18 || line[16] != ' ' || space == std::string::npos) return false;
  return unhex(line.substr(17, space - 17), key) && unhex(line.substr(space + 1), value) &&
         line_of(*key, *value) == line + "\n";
}

bool read_at(int file, int64_t at, size_t nbytes, std::string* text) {
  text->resize(nbytes);
  size_t done = 0;
  while (done < nbytes) {
    ssize_t got = pread(file, &(*text)[done], nbytes - done, at + static_cast<int64_t>(done));
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  text->resize(done);
  return done == nbytes;
}

bool write_all(int file, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    ssize_t put = write(file, text.data() + done, text.size() - done);
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return true;
}

// An open file under flock, closed at the end: the one that has the name once the lock is held, for whoever held it
// before may have put a new file in its place.
class LockedFile {
 public:
  LockedFile(const std::string& path, int flags, int kind) {
    for (bool again = true; again;) {
      file_ = open(path.c_str(), flags | O_CLOEXEC, 0644);
      if (file_ < 0) return;
      struct stat mine, named;
      bool is_locked = flock(file_, kind) == 0 && fstat(file_, &mine) == 0;
      if (is_locked && stat(path.c_str(), &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
        return;
      again = is_locked;
      close(file_);
      file_ = -1;
    }
  }
  ~LockedFile() {
    if (file_ >= 0) close(file_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  int get() const { return file_; }

 private:
  int file_ = -1;
};

struct stat status_of(int file) {
  struct stat status {};
  fstat(file, &status);
  return status;
}

// Puts a whole file in place of another: readers see the old one or the new one.
void replace(const std::string& path, const std::string& text) {
  std::string temporary = path + "." + std::to_string(getpid());
  int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  bool is_whole = write_all(file, text);
  close(file);
  if (!is_whole || rename(temporary.c_str(), path.c_str()) != 0) unlink(temporary.c_str());
}

}  // namespace

TuningCache& TuningCache::instance() {
  static TuningCache* cache = new TuningCache;  // never destroyed: kernels may ask at exit
  return *cache;
}

void TuningCache::open(const std::string& path) {
  std::lock_guard<std::mutex> hold(lock_);
  path_ = path;
  is_loaded_ = false;
  is_foreign_ = false;
  read_bytes_ = 0;
  damaged_ = lines_ = 0;
  entries_.clear();
}

void TuningCache::load_locked() {
  if (is_loaded_) return;
  is_loaded_ = true;
  if (path_.empty()) return;
  LockedFile file(path_, O_RDONLY, LOCK_SH);
  if (file.get() >= 0) read_new_lines(file.get());
}

void TuningCache::read_new_lines(int file) {
  struct stat status = status_of(file);
  int64_t size = status.st_size;
  if (size < read_bytes_ || status.st_ino != inode_) read_bytes_ = 0;  // somebody replaced it
  inode_ = status.st_ino;
  if (size <= read_bytes_ || size > LARGEST_FILE) return;
  std::string text;
  if (!read_at(file, read_bytes_, static_cast<size_t>(size - read_bytes_), &text)) return;
  size_t at = 0;
  if (read_bytes_ == 0) {
    if (text.compare(0, HEADER_BYTES, HEADER) != 0) {  // put writes it anew
      is_foreign_ = true;
      return;
    }
    at = HEADER_BYTES;
  }
  std::string key, value;
  for (size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    if (parse(text.substr(at, end - at), &key, &value)) {
      entries_[key] = value;
      ++lines_;
    } else {
      ++damaged_;
    }
  }
  read_bytes_ += static_cast<int64_t>(at);
}

bool TuningCache::get(const std::string& key, std::string* value) {
  std::lock_guard<std::mutex> hold(lock_);
  load_locked();
  auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  *value = found->second;
  return true;
}

void TuningCache::put(const std::string& key, const std::string& value) {
  std::lock_guard<std::mutex> hold(lock_);
  load_locked();
  entries_[key] = value;
  if (path_.empty()) return;
  LockedFile file(path_, O_RDWR | O_CREAT | O_APPEND, LOCK_EX);
  if (file.get() < 0) return;
  std::string start;
  int64_t size = status_of(file.get()).st_size;
  bool is_ours = read_at(file.get(), 0, HEADER_BYTES, &start) && start == HEADER && size <= LARGEST_FILE;
  if (is_ours) read_new_lines(file.get());  // what others added
  entries_[key] = value;
  if (!is_ours || (lines_ > 64 && lines_ > 4 * entries_.size())) {  // damaged at its head, or mostly replaced values
    std::string text = HEADER;
    for (const auto& [k, v] : entries_) text += line_of(k, v);
    replace(path_, text);
    read_bytes_ = 0;
    lines_ = 0;
    return;
  }
  std::string text = line_of(key, value), last;
  if (read_at(file.get(), size - 1, 1, &last) && last != "\n") text = "\n" + text;  // after a torn line
  write_all(file.get(), text);
}

uint64_t TuningCache::hash() {
  std::lock_guard<std::mutex> hold(lock_);
  load_locked();
  uint64_t hash = checksum("");
  for (const auto& [key, value] : entries_) hash = checksum(line_of(key, value), hash);
  return hash;
}

size_t TuningCache::size() {
  std::lock_guard<std::mutex> hold(lock_);
  load_locked();
  return entries_.size();
}

size_t TuningCache::damaged() {
  std::lock_guard<std::mutex> hold(lock_);
  load_locked();
  return damaged_;
}

bool TuningCache::is_foreign() {
  std::lock_guard<std::mutex> hold(lock_);
  load_locked();
  return is_foreign_;
}

}  // namespace mge
