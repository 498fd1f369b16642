// Switching between stacks. ucontext saves the signal mask by a system call at every switch, which
// would be most of the time a kernel takes; on x86-64 it is done by hand instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace fusewheel::emulation {

// A stack and where execution stands on it; without a stack of its own, the caller's.
class Stack {
 public:
  bool holds(uintptr_t address) const {
    return address - reinterpret_cast<uintptr_t>(memory_.get()) < kSize;
  }

#if defined(__x86_64__)
  // Begins at `entry`, which never returns, as soon as somebody switches here.
  void prepare(void (*entry)()) {
    allocate();
    auto top = reinterpret_cast<uintptr_t>(memory_.get() + kSize) & ~uintptr_t{15};
    auto* slots = reinterpret_cast<void**>(top) - 2;  // as if called: a return address on top
    slots[0] = reinterpret_cast<void*>(entry);
    slots[1] = nullptr;
    stack_pointer_ = slots - kSaved;
  }

  void switch_to(Stack& other) { exchange(&stack_pointer_, other.stack_pointer_); }

 private:
  static constexpr int kSaved = 6;

  // Leaves the registers that a call preserves on the old stack and takes those of the new one.
  __attribute__((naked, noinline)) static void exchange(void** /*rdi*/, void* /*rsi*/) {
    asm("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
        "ret\n");
  }

  void* stack_pointer_ = nullptr;
#else
  void prepare(void (*entry)()) {
    allocate();
    getcontext(&context_);
    context_.uc_stack.ss_sp = memory_.get();
    context_.uc_stack.ss_size = kSize;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }

  void switch_to(Stack& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_;
#endif

  static constexpr size_t kSize = 128 * 1024;

  void allocate() {
    if (memory_ == nullptr) {
      memory_.reset(new char[kSize]);
    }
  }

  std::unique_ptr<char[]> memory_;
};

}  // namespace fusewheel::emulation
