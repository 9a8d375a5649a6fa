//! README.md and docs/: the pages hang together, and what they tell people to type does what they say.

mod alike;
mod answers;
mod blocks;
mod links;
mod manual;
mod pages;
mod prepared;
