//! The token of an acquisition. Any process that has it may renew and release the lock.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The longest token, in characters.
const MAX_LEN: usize = 128;

/// Identifies one acquisition of a lock: normally a random UUID, which cannot be guessed. The store checks every change
/// against it. It is a secret, so `Debug` does not print it.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token(String);

impl Token {
    /// Returns a new, unique token.
    pub fn random() -> Self {
        Token(Uuid::new_v4().to_string())
    }

    /// Checks a token that a user has chosen: 1 to 128 letters, digits and `. _ : -`. The error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the token is empty".into());
        }
        if text.len() > MAX_LEN || !text.chars().all(is_of_token) {
            return Err(format!("the token is not 1 to {MAX_LEN} letters, digits and . _ : -"));
        }
        Ok(Token(text.to_owned()))
    }

    /// Returns the token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether a token may contain this character.
pub fn is_of_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-')
}

/// Hides the token, so that no error message can reveal it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_words() {
        for good in ["a", "0c8e1f3a-7c0f-4a57-9d51-6a8f6f0f7d10", "deploy:42.b_c", &"x".repeat(128)] {
            assert_eq!(Token::parse(good).map(|token| token.0), Ok(good.to_owned()));
        }
        for bad in ["", "a b", "a\n", "ж", "a/b", &"x".repeat(129)] {
            assert!(Token::parse(bad).is_err(), "{bad:?}");
        }
        assert_ne!(Token::random(), Token::random());
    }
}
