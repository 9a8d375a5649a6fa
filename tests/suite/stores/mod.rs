//! What is one store's own.

mod broken_records;
mod directory;
mod group;
mod group_directory;
mod group_planted;
mod record;
mod redis_costs;
mod redis_keys;
mod redis_mail;
mod redis_rejections;
mod redis_urls;
mod slips;
mod store_errors;
mod turnstile;
