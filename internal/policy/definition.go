package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Schema is the version of the Definition's JSON. It is raised when an older
// sidecar would misread a newer definition.
const Schema = 2

// MaxDefinitionSize bounds what is read from the store for one policy, in
// bytes. The API server's own bound on an object is about 1.5 MiB.
const MaxDefinitionSize = 2 << 20

// Definition is a policy as the store holds it: the object's identity, the
// pods that it selects with targets already resolved, and its spec.
type Definition struct {
	Schema     int    `json:"schema"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	UID        string `json:"uid,omitempty"`
	Generation int64  `json:"generation"`
	// Selectors choose the pods; a pod is chosen when any of them matches.
	Selectors []Selector `json:"selectors"`
	Spec      Spec       `json:"spec"`
	// Hash is the checksum of the rest, written by Encode and checked by
	// DecodeDefinition.
	Hash string `json:"hash,omitempty"`
}

// Selects says whether a pod with these labels enforces the definition.
func (d *Definition) Selects(labels map[string]string) bool {
	for _, s := range d.Selectors {
		if s.Matches(labels) {
			return true
		}
	}
	return false
}

// Encode is the definition's canonical JSON, with its schema and hash set:
// equal definitions have equal bytes.
func (d Definition) Encode() ([]byte, error) {
	d.Schema = Schema
	hash, err := d.checksum()
	if err != nil {
		return nil, fmt.Errorf("encode definition %s/%s: %w", d.Namespace, d.Name, err)
	}
	d.Hash = hash
	return json.Marshal(d)
}

// DecodeDefinition reads a definition from the store. It is strict: unknown
// fields, a foreign schema, a wrong checksum and invalid specs are errors, so
// that nothing is enforced that was not understood.
func DecodeDefinition(data []byte) (Definition, error) {
	var d Definition
	if len(data) > MaxDefinitionSize {
		return d, fmt.Errorf("definition has %d bytes, more than the %d allowed", len(data), MaxDefinitionSize)
	}
	if err := checkSchema(data); err != nil {
		return d, err
	}
	if err := decodeStrict(data, &d); err != nil {
		return d, fmt.Errorf("decode definition: %w", err)
	}
	hash, err := d.checksum()
	if err != nil {
		return d, err
	}
	if hash != d.Hash {
		return d, errors.New("definition does not match its hash: it was changed or cut off in the store")
	}
	d.Spec.Default()
	if err := d.Spec.Validate().orNil(); err != nil {
		return d, fmt.Errorf("definition is invalid: %w", err)
	}
	return d, nil
}

// checkSchema comes first: a newer definition may well have unknown fields, and
// what is wrong then is the version.
func checkSchema(data []byte) error {
	var head struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("decode definition: %w", err)
	}
	if head.Schema != Schema {
		return fmt.Errorf("definition has schema %d, this version reads %d", head.Schema, Schema)
	}
	return nil
}

// checksum is over everything but the hash itself: 128 bits of SHA-256.
func (d Definition) checksum() (string, error) {
	d.Hash = ""
	data, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

// DecodeSpec reads a spec from JSON, fills in the defaults and validates it.
// An invalid spec's error is Errors, with a path and a remedy for each fault.
func DecodeSpec(data []byte) (Spec, error) {
	var s Spec
	if err := decodeStrict(data, &s); err != nil {
		return s, err
	}
	s.Default()
	return s, s.Validate().orNil()
}
