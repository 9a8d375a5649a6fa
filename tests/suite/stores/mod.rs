//! What is one store's own.

mod broken_records;
mod directory;
mod record;
mod redis_urls;
mod store_errors;
mod turnstile;
