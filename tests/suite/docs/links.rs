//! The pages hang together.

use std::path::{Component, Path, PathBuf};

use super::pages::{self, Page, root};

/// The most lines that the README may have.
const README_MAX: usize = 250;

/// Resolves `..` in a path of the repository.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            assert!(resolved.pop(), "{} leaves the repository", path.display());
        } else {
            resolved.push(part);
        }
    }
    resolved
}

// "Relative links and anchors exist."
#[test]
fn every_link_leads_somewhere() {
    let mut followed = 0;
    for page in pages::all() {
        let name = page.name();
        for link in page.links().iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let here = page.path.parent().expect("a file");
            let target = if path.is_empty() { page.path.clone() } else { resolved(&here.join(path)) };
            assert!(root().join(&target).exists(), "{name}: there is no {link}");
            if !anchor.is_empty() {
                let anchors = Page::read(target).anchors();
                assert!(anchors.contains(anchor), "{name}: {link} is none of {anchors:?}");
            }
            followed += 1;
        }
    }
    assert!(followed > 100, "only {followed} links were found");
}

// "README of at most 250 lines", which leads to each page; "each page begins with what it answers".
#[test]
fn the_readme_is_short_and_leads_to_every_page() {
    let pages = pages::all();
    let (readme, docs) = pages.split_first().expect("a README");
    let length = readme.text.lines().count();
    assert!(length <= README_MAX, "README.md has {length} lines");
    let targets = |page: &Page| -> Vec<PathBuf> {
        let here = page.path.parent().expect("a file");
        let own = page.links().into_iter().filter(|link| !link.contains("://"));
        own.map(|link| resolved(&here.join(link.split('#').next().unwrap_or_default()))).collect()
    };
    let direct = targets(readme);
    let through = docs.iter().filter(|page| direct.contains(&page.path)).flat_map(targets);
    let reached: Vec<PathBuf> = direct.iter().cloned().chain(through).collect();
    for page in docs {
        assert!(reached.contains(&page.path), "the README does not lead to {}", page.name());
        let mut lines = page.text.lines();
        let heading = lines.next().is_some_and(|line| line.starts_with("# "));
        let answers = lines.nth(1).is_some_and(|line| line.starts_with(char::is_alphabetic));
        assert!(heading && answers, "{} does not begin with a heading and what it answers", page.name());
    }
}
