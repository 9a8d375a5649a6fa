//! The locks of the enclosing runs, whose commands include this process.

use super::ancestry;
use crate::lock::token::Token;
use crate::store::{Claim, Held};

/// The variable with the token of the innermost lock.
pub const TOKEN: &str = "LOCKRUN_TOKEN";

/// The variable with the tokens of the other enclosing locks, separated by blanks. Only set when locks are nested.
pub const OUTER: &str = "LOCKRUN_OUTER_TOKENS";

/// How many tokens a shell keeps.
const FOR_SHELL: usize = 16;

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

    /// Returns whether the holder, who keeps the `claim` waiting, is one of the enclosing runs: it has one of these
    /// tokens, or where a program on the way (sudo, `env -i`) has dropped the variables, /proc shows it.
    pub fn include(&self, held: &Held, claim: &Claim) -> bool {
        self.has(held.token.as_ref()) || ancestry::includes(held, claim)
    }

    /// Returns the value of [`OUTER`] for a command under a further lock; `None` if there is no enclosing run.
    pub fn for_command(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.0.iter().map(Token::as_str).collect::<Vec<_>>().join(" "))
    }

    /// Returns the value of [`OUTER`] for a shell that has acquired a further lock by hand under the token `acquired`;
    /// `None` if there is no other.
    ///
    /// A shell that acquires one lock after the other adds a token each time, and cannot tell which of them it has
    /// released. So that the value stays short, only the first tokens are kept: those of the runs around the shell.
    pub fn for_shell(&self, acquired: &Token) -> Option<String> {
        let others = self.0.iter().filter(|token| *token != acquired).take(FOR_SHELL);
        EnclosingLocks(others.cloned().collect()).for_command()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> Token {
        Token::parse(name).expect("is a token")
    }

    #[test]
    fn nested_locks_are_known_all() {
        let environment = |name: &str| match name {
            TOKEN => Some("c".to_owned()),
            OUTER => Some("a b".to_owned()),
            _ => None,
        };
        let outer = EnclosingLocks::read(&environment);
        let has = |name: &str| outer.has(Some(&token(name)));
        assert!(has("a") && has("c") && !outer.is_empty());
        assert!(!has("d") && !outer.has(None));
        assert_eq!(outer.for_command().as_deref(), Some("a b c"));
        assert_eq!(outer.for_shell(&token("d")).as_deref(), Some("a b c"));
        assert_eq!(outer.for_shell(&token("c")).as_deref(), Some("a b"), "acquired again");
        let many = EnclosingLocks((0..1000).map(|n| token(&format!("t{n}"))).collect());
        let kept = many.for_shell(&token("d")).expect("has others");
        assert!(kept.starts_with("t0 t1 ") && kept.ends_with(" t15"), "{kept}");
        let none = EnclosingLocks::read(&|_| None);
        assert!(none.is_empty() && none.for_command().is_none());
    }
}
