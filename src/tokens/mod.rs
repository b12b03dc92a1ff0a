//! Token ids of prompts, equal to those that the engine makes.
