/* Random numbers for Rust's standard library, under Wine before 9: Windows has this library, older Wines do not. */
#include <windows.h>

/* RtlGenRandom, under the name that advapi32 exports. */
BOOLEAN NTAPI SystemFunction036(PVOID data, ULONG len);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T len) {
    while (len > 0) {
        ULONG part = len > 0x10000000 ? 0x10000000 : (ULONG)len;
        if (!SystemFunction036(data, part)) {
            return FALSE;
        }
        data += part;
        len -= part;
    }
    return TRUE;
}
