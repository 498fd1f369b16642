// A list of usually few items, which lie in it. The weights of a model drive the lists of its program out
// of the processor's caches in every call, and each further piece of memory is one more that has to come
// back.
#pragma once

#include <cstddef>
#include <iterator>
#include <vector>

namespace fusewheel::engine {

template <typename T, size_t usual>
class Few {
 public:
  void push_back(T item) {
    if (size_ < usual) {
      own_[size_] = item;
    } else {
      if (size_ == usual) {
        all_.assign(own_, own_ + usual);
      }
      all_.push_back(item);
    }
    ++size_;
  }

  size_t size() const { return size_; }
  const T& operator[](size_t i) const { return begin()[i]; }
  const T* begin() const { return size_ > usual ? all_.data() : own_; }
  const T* end() const { return begin() + size_; }
  T* begin() { return size_ > usual ? all_.data() : own_; }
  T* end() { return begin() + size_; }
  std::reverse_iterator<T*> rbegin() { return std::reverse_iterator<T*>(end()); }
  std::reverse_iterator<T*> rend() { return std::reverse_iterator<T*>(begin()); }

 private:
  size_t size_ = 0;
  T own_[usual] = {};
  std::vector<T> all_;  // where there are more
};

}  // namespace fusewheel::engine
