/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs' functions that tarn calls, defined under their own names. Each forwards to libibverbs.so.1,
 * which the first call loads. So <infiniband/verbs.h> and its inline functions work unchanged, and nothing
 * that tarn builds needs the library in order to start. libtarn.so does not export them.
 *
 * Without the library they all fail. tarn first asks tarn_verbs_missing(), for the reason.
 */
#include "transport/rdma/rdma_rail.h"

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>

#include "base/error.h"

/* These are macros as well. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define NOTHING ((void)0)
/* X(type, name, parameters, arguments, result without the library) */
#define VERBS(X) \
    X(struct ibv_device **, ibv_get_device_list, (int *n), (n), NULL) \
    X(void, ibv_free_device_list, (struct ibv_device * *list), (list), NOTHING) \
    X(const char *, ibv_get_device_name, (struct ibv_device * d), (d), "") \
    X(struct ibv_context *, ibv_open_device, (struct ibv_device * d), (d), NULL) \
    X(int, ibv_close_device, (struct ibv_context * c), (c), ENOSYS) \
    X(int, ibv_query_device, (struct ibv_context * c, struct ibv_device_attr * a), (c, a), ENOSYS) \
    X(int, ibv_query_port, (struct ibv_context * c, uint8_t port, struct _compat_ibv_port_attr * a), \
      (c, port, a), ENOSYS) \
    X(int, _ibv_query_gid_ex, \
      (struct ibv_context * c, uint32_t port, uint32_t i, struct ibv_gid_entry * e, uint32_t flags, \
       size_t n), \
      (c, port, i, e, flags, n), ENOSYS) \
    X(enum ibv_fork_status, ibv_is_fork_initialized, (void), (), IBV_FORK_DISABLED) \
    X(int, ibv_fork_init, (void), (), ENOSYS) \
    X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * c), (c), NULL) \
    X(int, ibv_dealloc_pd, (struct ibv_pd * pd), (pd), ENOSYS) \
    X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd * pd, void *addr, size_t n, int access), \
      (pd, addr, n, access), NULL) \
    X(struct ibv_mr *, ibv_reg_mr_iova, \
      (struct ibv_pd * pd, void *addr, size_t n, uint64_t iova, int access), (pd, addr, n, iova, access), \
      NULL) \
    X(struct ibv_mr *, ibv_reg_mr_iova2, \
      (struct ibv_pd * pd, void *addr, size_t n, uint64_t iova, unsigned int access), \
      (pd, addr, n, iova, access), NULL) \
    X(struct ibv_mr *, ibv_reg_dmabuf_mr, \
      (struct ibv_pd * pd, uint64_t offset, size_t n, uint64_t iova, int fd, int access), \
      (pd, offset, n, iova, fd, access), NULL) \
    X(int, ibv_dereg_mr, (struct ibv_mr * mr), (mr), ENOSYS) \
    X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context * c), (c), NULL) \
    X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel * ch), (ch), ENOSYS) \
    X(struct ibv_cq *, ibv_create_cq, \
      (struct ibv_context * c, int n, void *arg, struct ibv_comp_channel *ch, int vector), \
      (c, n, arg, ch, vector), NULL) \
    X(int, ibv_destroy_cq, (struct ibv_cq * cq), (cq), ENOSYS) \
    X(int, ibv_get_cq_event, (struct ibv_comp_channel * ch, struct ibv_cq * *cq, void **arg), (ch, cq, arg), \
      -1) \
    X(void, ibv_ack_cq_events, (struct ibv_cq * cq, unsigned int n), (cq, n), NOTHING) \
    X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr * a), (pd, a), NULL) \
    X(int, ibv_modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr * a, int mask), (qp, a, mask), ENOSYS) \
    X(int, ibv_destroy_qp, (struct ibv_qp * qp), (qp), ENOSYS) \
    X(const char *, ibv_wc_status_str, (enum ibv_wc_status status), (status), "unknown")

static struct {
    pthread_once_t once;
    char missing[TARN_SENTENCE]; /* "": all were found */
#define SLOT(type_, name_, parameters_, arguments_, without_) type_(*name_) parameters_;
    VERBS(SLOT)
#undef SLOT
} verbs = {.once = PTHREAD_ONCE_INIT};

/* NULL after a missing function: the first one is reported. */
static void *find(void *library, const char *name)
{
    void *f = verbs.missing[0] ? NULL : dlsym(library, name);
    if (!f && !verbs.missing[0])
        snprintf(verbs.missing, sizeof verbs.missing, "libibverbs.so.1 has no %s: it is too old", name);
    return f;
}

/* Never unloaded: drivers leave threads and mappings behind. */
static void load(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        snprintf(verbs.missing, sizeof verbs.missing, "%s", why ? why : "libibverbs.so.1 cannot be loaded");
        return;
    }
#define FIND(type_, name_, parameters_, arguments_, without_) verbs.name_ = find(library, #name_);
    VERBS(FIND)
#undef FIND
}

const char *tarn_verbs_missing(void)
{
    pthread_once(&verbs.once, load);
    return verbs.missing[0] ? verbs.missing : NULL;
}

#define DEFINE(type_, name_, parameters_, arguments_, without_) \
    type_ name_ parameters_ \
    { \
        return tarn_verbs_missing() ? without_ : verbs.name_ arguments_; \
    }
VERBS(DEFINE)
