//! The pages of the documentation, as the tests read them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A page.
pub(super) struct Page {
    /// Its path in the repository.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// A block of code in a page.
pub(super) struct Block {
    pub(super) page: String,
    /// The number of its first line in the page.
    pub(super) line: usize,
    pub(super) language: String,
    pub(super) text: String,
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the README, SECURITY.md and all pages of docs/.
pub(super) fn all() -> Vec<Page> {
    let names = |directory: &'static str| {
        let entries = fs::read_dir(root().join(directory)).expect("a directory");
        entries.map(move |entry| Path::new(directory).join(entry.expect("a page").file_name()))
    };
    let mut paths: Vec<PathBuf> = ["docs", "docs/internals"].into_iter().flat_map(names).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    paths.splice(..0, ["README.md".into(), "SECURITY.md".into()]);
    paths.into_iter().map(Page::read).collect()
}

impl Page {
    pub(super) fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, text }
    }

    /// Returns its path for messages.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Returns its lines outside of blocks of code.
    pub(super) fn prose(&self) -> impl Iterator<Item = &str> {
        let mut is_code = false;
        self.text.lines().filter(move |line| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        })
    }

    /// Returns the anchors of its headings.
    pub(super) fn anchors(&self) -> BTreeSet<String> {
        self.prose().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
    }

    /// Returns the targets of its links.
    pub(super) fn links(&self) -> Vec<String> {
        let prose: Vec<&str> = self.prose().collect();
        let prose = prose.join("\n");
        prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
    }

    /// Returns its blocks of code.
    pub(super) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (number, line) in self.text.lines().enumerate() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    let (page, language) = (self.name(), language.to_owned());
                    open = Some(Block { page, line: number + 2, language, text: String::new() });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.text.extend([line, "\n"]),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block without an end", self.name());
        blocks
    }
}

impl Block {
    /// Returns where it stands, for messages.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    pub(super) fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }
}

/// Returns the anchor of a heading as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.trim().to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}
