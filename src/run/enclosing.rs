//! The locks of the enclosing runs, whose commands include this process.

use crate::lock::token::Token;

/// The variable with the token of the innermost lock.
pub const TOKEN: &str = "LOCKRUN_TOKEN";

/// The variable with the tokens of the other enclosing locks, separated by blanks. Only set when locks are nested.
pub const OUTER: &str = "LOCKRUN_OUTER_TOKENS";

/// The tokens of the locks that this process runs under.
#[derive(Clone, Debug, Default)]
pub struct EnclosingLocks(Vec<Token>);

impl EnclosingLocks {
    /// Reads the tokens from the environment.
    pub fn of_this_process() -> Self {
        Self::read(&|name| std::env::var(name).ok())
    }

    /// Reads the tokens from the variables that `variable` looks up.
    fn read(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let outer = variable(OUTER).unwrap_or_default();
        let inner = variable(TOKEN);
        let words = outer.split_ascii_whitespace().chain(inner.as_deref());
        EnclosingLocks(words.filter_map(|word| Token::parse(word).ok()).collect())
    }

    /// Returns whether this process runs under no lock.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether `token` holds one of these locks, which cannot become free before this process ends.
    pub fn has(&self, token: Option<&Token>) -> bool {
        token.is_some_and(|token| self.0.contains(token))
    }

    /// Returns the value of [`OUTER`] for a command under a further lock; `None` if there is no enclosing run.
    pub fn for_command(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.0.iter().map(Token::as_str).collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_locks_are_known_all() {
        let environment = |name: &str| match name {
            TOKEN => Some("c".to_owned()),
            OUTER => Some("a b".to_owned()),
            _ => None,
        };
        let outer = EnclosingLocks::read(&environment);
        let has = |token: &str| outer.has(Token::parse(token).ok().as_ref());
        assert!(has("a") && has("c") && !outer.is_empty());
        assert!(!has("d") && !outer.has(None));
        assert_eq!(outer.for_command().as_deref(), Some("a b c"));
        let none = EnclosingLocks::read(&|_| None);
        assert!(none.is_empty() && none.for_command().is_none());
    }
}
