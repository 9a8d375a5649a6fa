//! The other commands.

mod breaking;
mod by_hand;
mod doctor;
mod doctor_etcd;
mod doctor_postgres;
mod doctor_rights;
mod doctor_schema;
mod kept;
mod metrics;
mod min_hold;
mod prune;
mod schemas;
mod status;
