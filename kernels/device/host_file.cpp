#include "device/host_file.h"

#include <sys/stat.h>

#include <cerrno>

namespace vt {

HostPlace place_in(int file) noexcept {
  struct stat found = {};
  HostPlace place;
  place.file = file;
  if (fstat(file, &found) == 0) {
    place.device = found.st_dev;
    place.inode = found.st_ino;
  }
  return place;
}

bool still_there(const HostPlace& place) noexcept {
  struct stat found = {};
  if (fstat(place.file, &found) != 0) return false;
  if (found.st_dev == place.device && found.st_ino == place.inode) return true;
  errno = EBADF;
  return false;
}

}  // namespace vt
