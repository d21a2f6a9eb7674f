//! Amdahl's law and the Universal Scalability Law.
