//! Facilities that the services of one process share: its clock, its file descriptors, its health, and how it lets peers in and
//! reaches servers of others.

pub mod arrivals;
pub mod clock;
pub mod descriptors;
pub mod health;
pub mod http;
pub mod http1;
pub mod newcomers;
pub mod pages;
pub mod places;
pub mod random;
pub mod reach;
pub mod step;
pub mod tasks;
pub mod threads;
pub mod tls;
