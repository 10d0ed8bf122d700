//! Members without a network: [`Mesh`] carries records between them at once, and its time is virtual.

mod absence;
mod bounds;
mod identity;
mod links;
mod mesh;
mod relay;
mod spread;
