//! A failing test says why where it fails. The test runner keeps the reasons until all tests have ended.

use std::io::{self, Write as _};
use std::panic;
use std::sync::Once;
use std::thread;

/// Prints the reason of each panic at once, from now on. One that is about a time has no text: it is judged, and
/// printed, elsewhere.
pub(crate) fn say_at_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let keep = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if let Some(why) = panic.payload_as_str() {
                let test = thread::current().name().unwrap_or("a thread").to_owned();
                let place = panic.location().map(|place| format!(" (at {place})")).unwrap_or_default();
                // Not by a macro, whose output the test runner hides.
                let _ = writeln!(io::stderr(), "{test} panicked: {why}{place}");
            }
            keep(panic);
        }));
    });
}
