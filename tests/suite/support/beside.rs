//! What goes on beside a test, again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Runs `test`, and meanwhile calls each of `others` again and again, in a thread of its own. They end with the test,
/// even if it fails.
pub(crate) fn beside<T>(others: Vec<impl FnMut() + Send>, test: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        let _over = SetOnDrop(&is_over);
        for mut other in others {
            let is_over = &is_over;
            threads.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    other();
                }
            });
        }
        test()
    })
}

/// Sets the flag when it is dropped, also by a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
