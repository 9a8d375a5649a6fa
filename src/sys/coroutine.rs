//! Functions that can be suspended and resumed: several of them take turns on one thread. Only for the unit tests.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libc::ucontext_t;

/// The size of a stack: enough for a panic's message. Untouched pages cost nothing.
const STACK: usize = 512 * 1024;

/// The size of the inaccessible area below each stack.
const GUARD: usize = 16 * 1024;

/// A function that can be suspended. If it is dropped before it has ended, what it owns is leaked.
pub struct Coroutine(Box<State>);

struct State {
    own: MaybeUninit<ucontext_t>,
    caller: MaybeUninit<ucontext_t>,
    body: Option<Box<dyn FnOnce()>>,
    has_ended: bool,
    stack: Stack,
}

thread_local! {
    /// The coroutine that is running.
    static CURRENT: Cell<*mut State> = const { Cell::new(ptr::null_mut()) };
    /// The stacks of coroutines that have ended, for reuse.
    static STACKS: RefCell<Vec<Stack>> = const { RefCell::new(Vec::new()) };
}

impl Coroutine {
    /// Returns a coroutine that runs `body` when it is resumed. If `body` panics, the process aborts.
    pub fn new(body: impl FnOnce() + 'static) -> Self {
        let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_else(Stack::new);
        let (own, caller) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        let mut state = Box::new(State { own, caller, body: Some(Box::new(body)), has_ended: false, stack });
        // SAFETY: the context is initialised by getcontext; its stack lives as long as the state, which is boxed and
        // does not move; `enter` takes no arguments.
        unsafe {
            assert_eq!(libc::getcontext(state.own.as_mut_ptr()), 0);
            let own = state.own.assume_init_mut();
            own.uc_stack.ss_sp = state.stack.0.cast::<u8>().add(GUARD).cast();
            own.uc_stack.ss_size = STACK;
            own.uc_link = ptr::null_mut();
            libc::makecontext(state.own.as_mut_ptr(), enter, 0);
        }
        Coroutine(state)
    }

    /// Runs it until it suspends itself or ends. Returns whether it has ended. Must be called on the thread that
    /// created it.
    pub fn resume(&mut self) -> bool {
        assert!(!self.0.has_ended, "it has ended");
        let state: *mut State = &raw mut *self.0;
        let before = CURRENT.replace(state);
        // SAFETY: the state is alive; its own context was made above, or stored when it was suspended.
        unsafe { libc::swapcontext((*state).caller.as_mut_ptr(), (*state).own.as_ptr()) };
        CURRENT.set(before);
        self.0.has_ended
    }
}

/// Suspends the running coroutine until it is resumed.
pub fn suspend() {
    let state = CURRENT.get();
    assert!(!state.is_null(), "no coroutine runs");
    // SAFETY: `resume` holds the state, and has stored its caller's context.
    unsafe { libc::swapcontext((*state).own.as_mut_ptr(), (*state).caller.as_ptr()) };
}

extern "C" fn enter() {
    let state = CURRENT.get();
    // SAFETY: `resume` has set it to its state, which nothing else uses until it is resumed again.
    let body = unsafe { (*state).body.take() };
    let ended = catch_unwind(AssertUnwindSafe(|| body.into_iter().for_each(|body| body())));
    if ended.is_err() {
        // A panic cannot unwind past the coroutine's own stack.
        std::process::abort();
    }
    // SAFETY: as above.
    unsafe { (*state).has_ended = true };
    suspend();
    unreachable!("it has ended");
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        if self.0.has_ended {
            let stack = Stack(std::mem::replace(&mut self.0.stack.0, ptr::null_mut()));
            // While the thread is ending, the list may be gone; then the stack is unmapped.
            let _ = STACKS.try_with(|stacks| stacks.borrow_mut().push(stack));
        }
    }
}

/// Memory for a stack.
struct Stack(*mut libc::c_void);

impl Stack {
    fn new() -> Self {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice, whose first pages are then forbidden.
        let stack = unsafe { libc::mmap(ptr::null_mut(), GUARD + STACK, protection, flags, -1, 0) };
        assert_ne!(stack, libc::MAP_FAILED, "there is no memory for a stack");
        // SAFETY: the pages are of the mapping above.
        assert_eq!(unsafe { libc::mprotect(stack, GUARD, libc::PROT_NONE) }, 0);
        Stack(stack)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the mapping is this value's own, and no coroutine runs on it.
            unsafe { libc::munmap(self.0, GUARD + STACK) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn stories_take_turns() {
        let said: Rc<RefCell<Vec<u32>>> = Rc::default();
        let story = |first: u32| {
            let said = Rc::clone(&said);
            Coroutine::new(move || {
                for number in [first, first + 1] {
                    said.borrow_mut().push(number);
                    suspend();
                }
            })
        };
        let mut stories = [story(1), story(10)];
        while !stories.each_mut().map(Coroutine::resume).contains(&true) {}
        assert_eq!(*said.borrow(), [1, 10, 2, 11]);
    }
}
