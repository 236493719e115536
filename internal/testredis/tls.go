package testredis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// ServerName is the name in the servers' certificates, besides 127.0.0.1.
const ServerName = "redis.test"

// Certificates are the PEM files of an authority, and of a certificate for
// servers and one for clients that it has signed.
type Certificates struct {
	CAFile                        string
	ServerCertFile, ServerKeyFile string
	ClientCertFile, ClientKeyFile string
	ca                            *x509.Certificate
	caKey                         *ecdsa.PrivateKey
	dir                           string
	serial                        int64
}

// NewCertificates makes an authority of its own, valid for a day.
func NewCertificates(t testing.TB) *Certificates {
	t.Helper()
	c := &Certificates{dir: t.TempDir(), caKey: newKey(t)}
	c.ca = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	c.CAFile = c.write(t, "ca.crt", "CERTIFICATE", sign(t, c.ca, c.ca, c.caKey, c.caKey))
	c.ServerCertFile, c.ServerKeyFile = c.Issue(t, "server")
	c.ClientCertFile, c.ClientKeyFile = c.Issue(t, "client")
	return c
}

// Issue signs a certificate for a new key, good for servers and clients, and
// writes both to files by that name. It replaces older ones.
func (c *Certificates) Issue(t testing.TB, name string) (certFile, keyFile string) {
	t.Helper()
	c.serial++
	key := newKey(t)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1 + c.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: c.ca.NotBefore, NotAfter: c.ca.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{ServerName}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("encode a key: %v", err)
	}
	return c.write(t, name+".crt", "CERTIFICATE", sign(t, cert, c.ca, key, c.caKey)),
		c.write(t, name+".key", "PRIVATE KEY", der)
}

// Args make a server speak TLS only, and ask clients for a certificate: they are
// arguments of Start, StartCluster and StartSentinel.
func (c *Certificates) Args() []string {
	return []string{
		"--tls-cert-file", c.ServerCertFile, "--tls-key-file", c.ServerKeyFile,
		"--tls-ca-cert-file", c.CAFile, "--tls-auth-clients", "yes",
		"--tls-replication", "yes", "--tls-cluster", "yes",
	}
}

func (c *Certificates) write(t testing.TB, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make a key: %v", err)
	}
	return key
}

func sign(t testing.TB, cert, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatalf("sign a certificate: %v", err)
	}
	return der
}

// tlsConfig lets a client talk to the server, as the server itself would to
// another: both have the same certificate.
func (s *Server) tlsConfig(t testing.TB) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(s.arg("--tls-cert-file"), s.arg("--tls-key-file"))
	if err != nil {
		t.Fatalf("load the server's certificate: %v", err)
	}
	ca, err := os.ReadFile(s.arg("--tls-ca-cert-file"))
	if err != nil {
		t.Fatalf("read the authority's certificate: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}
