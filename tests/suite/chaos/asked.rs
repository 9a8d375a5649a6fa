//! Variables that make a test longer than the slice that runs among the other tests.

/// Returns the number in this variable.
pub(super) fn asked(variable: &str) -> Option<u64> {
    let number = |asked: String| asked.parse().unwrap_or_else(|_| panic!("{variable} is no number: {asked}"));
    std::env::var(variable).ok().filter(|asked| !asked.is_empty()).map(number)
}
