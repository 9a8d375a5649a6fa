//! What is one store's own.

mod broken_records;
mod directory;
mod failover;
mod group;
mod group_directory;
mod group_planted;
mod postgres_faults;
mod postgres_first_use;
mod postgres_hosts;
mod postgres_many;
mod postgres_mismatch;
mod postgres_others;
mod postgres_passwords;
mod postgres_pooler;
mod postgres_tls;
mod postgres_unusable;
mod record;
mod redis_costs;
mod redis_keys;
mod redis_mail;
mod redis_rejections;
mod redis_urls;
mod slips;
mod store_errors;
mod turnstile;
