//! The URLs of stores.

use super::STORES;
use crate::store::Address;

// lockrun accepts the URLs in the examples.
#[test]
fn every_documented_url_is_accepted() {
    let is_url = |line: &&str| line.contains(":/") && line.starts_with(|c: char| c.is_ascii_lowercase());
    let urls = STORES
        .split("```")
        .filter_map(|block| block.strip_prefix("text\n"))
        .flat_map(str::lines)
        .filter(is_url)
        .filter_map(|line| line.split_whitespace().next());
    let mut count = 0;
    for url in urls {
        assert!(Address::parse(url).is_ok(), "{url}");
        count += 1;
    }
    assert!(count >= 5, "only {count} URLs were found");
}
