// Package testredis runs real redis-server processes for tests.
//
// What Redis does is the contract of the store and of the counting scripts, so
// their tests speak to the real one. A test that needs it never skips: where
// redis-server is missing it fails and says how to install it. The binary is
// the one in PATH, or the one that the environment variable REDIS_SERVER names
// (Valkey's, for example).
//
// Only tests may import this package.
package testredis
